// What the page does around the inspector: link, theme, save, the run's output. Data is set as textContent only.
window.dflashLab = (() => {
  const LINK_VERSION = "1";
  const THEME_KEY = "dflash-lab-theme";
  const BLOCK = 8;
  const FOLLOW_MS = 700;
  const testing = new URLSearchParams(location.search).has("testing");
  const here = { trace: null, step: 0, pos: null };
  let beside = null;
  let savePicture = null;

  function element(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // Link: the address always names what is shown.

  function remember(change) {
    const url = new URL(location.href);
    for (const [key, value] of Object.entries({ ...change, v: LINK_VERSION })) {
      if (value === null || value === undefined) url.searchParams.delete(key);
      else url.searchParams.set(key, value);
    }
    history.replaceState(history.state, "", url);
  }

  // Tabs report their first selection before the server has read the link: until it has answered, the link stands.
  function tab(id) {
    if (here.trace) remember({ tab: id, with: id === "compare" ? beside : null });
  }

  function shownTab() {
    return document.querySelector("#dfa-tabs [role=tab][aria-selected=true]")?.dataset.tabId;
  }

  // A trace chosen in the header is looked at where traces are looked at.
  function showTrace() {
    if (shownTab() !== "compare") document.querySelector("#dfa-tabs [data-tab-id=inspect]").click();
  }

  function moveTo(place) {
    Object.assign(here, place);
    remember(beside && shownTab() === "compare" ? { ...here, with: beside } : here);
  }

  async function copyLink() {
    const button = document.querySelector("[data-do=link]");
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy it from the address bar";
    }
    setTimeout(() => { button.textContent = "Copy link"; }, 1500);
  }

  // Panes: mounted anew for other traces, moved for another place.

  async function ask(look_up, question) {
    const answer = await look_up(question);
    if (answer.error) throw new Error(answer.error);
    return answer;
  }

  const load = (name) => import(new URL(`${window.dflashModules}/${name}.js`, document.baseURI));

  // Plotly is large: it comes with the first chart.
  let coming = null;
  const plotly = () => (coming ??= new Promise((resolve, reject) => {
    const script = element("script");
    script.src = new URL(window.dflashPlotly, document.baseURI);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js did not load"));
    document.head.append(script);
  }));

  function source(server, trace) {
    const summary = ask(server.trace_summary, { trace });
    const blocks = new Map();
    // Neighbours come in one answer, each used once: who asks again wants it anew.
    async function getStep(step) {
      const alone = () => ask(server.step_wire, { trace, step });
      if ((await summary).status === "running") return alone();
      const number = Math.floor(step / BLOCK);
      if (!blocks.has(number)) blocks.set(number, ask(server.step_wire, { trace, step, block: true }));
      if (blocks.size > BLOCK) blocks.delete(blocks.keys().next().value);
      const { steps } = await blocks.get(number).catch((error) => {
        blocks.delete(number);
        throw error;
      });
      const at = steps.findIndex(({ i }) => i === step);
      return at < 0 ? alone() : steps.splice(at, 1)[0];
    }
    return { summary, getStep };
  }

  // `shown(view)` names what is mounted, `mount(slot, view)` mounts it, `arrived(view)` hears that it is there.
  function pane(root, props, watch, { shown, mount, arrived }) {
    const [notice, slot] = root.querySelectorAll(".dfa-notice, .dfa-slot");
    let dispose = null;
    let current = null;
    let turn = 0;

    function say(text) {
      notice.textContent = text ?? "";
      notice.hidden = !text;
    }

    async function show() {
      const view = props.value;
      if (!view) return;
      const mine = ++turn;
      say(view.notice);
      try {
        const name = shown(view);
        if (name === current) dispose.show?.({ step: view.step, pos: view.pos ?? undefined });
        else {
          const ready = await mount(view);
          if (mine !== turn) return;
          dispose?.();
          dispose = ready(slot);
          current = name;
        }
        arrived(view);
      } catch (error) {
        if (mine === turn) say(error.message);
      }
    }

    watch("value", show);
    show();
  }

  const initial = ({ step, pos }) => ({ step, pos: pos ?? undefined });

  function inspect(root, props, server, watch) {
    pane(root, props, watch, {
      shown: (view) => view.trace,
      async mount(view) {
        const traces = source(server, view.trace);
        const [module, summary] = await Promise.all([load("inspector"), traces.summary]);
        const host = { ...traces, summary, onPermalink: copyLink, initial: initial(view), testing };
        return (slot) => {
          const dispose = module.mount(slot, { ...host, onSelect: ({ step, pos }) => moveTo({ step, pos }) });
          savePicture = dispose.savePicture;
          const size = document.querySelector(".dfa-page-size");
          size.textContent = `.html ≈ ${(summary.pageBytes / 1e6).toFixed(summary.pageBytes < 1e7 ? 1 : 0)} MB`;
          if (summary.status === "running") follow(server, view.trace, dispose, slot.firstChild);
          return dispose;
        };
      },
      arrived: ({ trace, step, pos }) => moveTo({ trace, step, pos }),
    });
  }

  // The steps of a run as they come, until it ends or `shown` is no longer on the page.
  async function follow(server, trace, dispose, shown) {
    for (let running = true; running; ) {
      await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
      const summary = await ask(server.trace_summary, { trace }).catch(() => null);
      if (!summary || !shown.isConnected) return;
      dispose.update(summary);
      running = summary.status === "running";
      // What has ended has a name that depends on its content alone.
      if (!running) moveTo({ trace: summary.id });
    }
  }

  function compare(root, props, server, watch) {
    pane(root, props, watch, {
      shown: (view) => `${view.trace} ${view.with}`,
      async mount(view) {
        if (!view.with) throw new Error("There is one trace only: open another file, or decode a prompt.");
        const sources = [view.trace, view.with].map((trace) => source(server, trace));
        const [module, comparison, ...summaries] = await Promise.all([
          load("compare"),
          ask(server.comparison, { trace: view.trace, with: view.with }),
          ...sources.map((each) => each.summary),
        ]);
        const traces = sources.map((each, i) => ({ ...each, summary: summaries[i] }));
        const host = { comparison, traces, initial: initial(view), testing };
        return (slot) => module.mountCompare(slot, { ...host, onSelect: ({ step, pos }) => moveTo({ step, pos }) });
      },
      arrived(view) {
        beside = view.with;
        if (here.trace && shownTab() === "compare") remember({ with: beside });
      },
    });
  }

  // Header.

  function theme() {
    return localStorage.getItem(THEME_KEY) ?? "auto";
  }

  function paint(button) {
    const chosen = theme();
    const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.body.classList.toggle("dark", dark);
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[chosen];
    button.setAttribute("aria-label", `Theme: ${button.textContent}`);
  }

  function tools(root, save) {
    const menu = root.querySelector("details");
    const themeButton = root.querySelector("[data-do=theme]");
    paint(themeButton);
    // Gradio follows the system as well; this listener is the later one, so a choice made here stands.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(themeButton));
    root.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (button?.dataset.save) {
        menu.open = false;
        save({ kind: button.dataset.save, trace: here.trace, step: here.step });
      } else if (button?.dataset.picture) {
        menu.open = false;
        savePicture?.(button.dataset.picture);
      } else if (button?.dataset.do === "link") copyLink();
      else if (button?.dataset.do === "help") document.querySelector("#dfa-tabs [data-tab-id=help]")?.click();
      else if (button === themeButton) {
        const next = { auto: "light", light: "dark", dark: "auto" }[theme()];
        if (next === "auto") localStorage.removeItem(THEME_KEY);
        else localStorage.setItem(THEME_KEY, next);
        paint(themeButton);
      }
    });
    document.addEventListener("click", ({ target }) => { if (!menu.contains(target)) menu.open = false; });
    menu.addEventListener("keydown", ({ key }) => {
      if (key !== "Escape") return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
  }

  // A file dropped anywhere goes the way of the Open button; dropped text does not.
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    const one = new DataTransfer();
    one.items.add(event.dataTransfer.files[0]);
    const input = document.querySelector("#dfa-header input[type=file]");
    input.files = one.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });

  function download(file) {
    const link = element("a");
    link.href = file.url;
    link.download = file.orig_name;
    link.click();
  }

  // Output of a run.

  const TILES = [
    ["acceptance_length", "acceptance length", 2, "1 + accepted, mean over the steps, not cut"],
    ["rolling_acceptance_length", "last 16 steps", 2, "acceptance length of the last 16 steps"],
    ["tok_s", "tok/s", 1, "tokens after the first / seconds since the first"],
    ["tok_s_now", "tok/s now", 1, "the last 2 seconds"],
    ["steps", "steps", 0, "verification steps"],
    ["tokens", "tokens", 0, "committed, the one from prefill included"],
    ["ttft_ms", "first token, ms", 0, "prefill with the first token; shown at the end"],
  ];

  function output(root, props, watch) {
    const [tiles, status, warnings, text] = root.querySelectorAll(".dfa-tiles, .dfa-status, .dfa-warnings, .dfa-output");
    const values = new Map(TILES.map(([key, label, , meaning]) => {
      const tile = element("div", "dfa-tile");
      tile.title = meaning;
      const value = element("b", "", "–");
      tile.append(value, element("small", "", label));
      tiles.append(tile);
      return [key, value];
    }));

    function show() {
      const run = props.value;
      if (!run) return;
      root.dataset.state = run.state;
      if (status.textContent !== run.message) status.textContent = run.message;
      warnings.textContent = run.warnings.map((warning) => `⚠ ${warning}`).join("\n");
      for (const [key, , digits] of TILES) values.get(key).textContent = run[key]?.toFixed(digits) ?? "–";
      const follow = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
      if (run.parts.length < text.childElementCount) text.replaceChildren();
      for (const [origin, words] of run.parts.slice(text.childElementCount)) {
        text.append(element("span", `dfa-${origin}`, words));
      }
      if (follow) text.scrollTop = text.scrollHeight;
    }

    watch("value", show);
    show();
  }

  return { inspect, compare, tools, output, download, tab, showTrace, load, plotly };
})();
