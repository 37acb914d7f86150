// The Ablations tab: shows results, asks how a sweep goes while one does. Data is set as textContent only.
window.dflashSweep = (root, props, server, watch, send, templates) => {
  const EVERY_MS = 700;
  // Results that another process writes are looked at again, if not so often.
  const IDLE_TURNS = 6;
  const ENDED = ["done", "stopped", "failed", "cancelled"];
  const [notice, work, bar, gridSlot, figureSlot] = root.querySelectorAll(
    ".dfa-notice, .dfa-sweep-work, .dfa-live-bar, .dfa-sweep-grid, .dfa-sweep-figures",
  );
  const here = { source: null, slice: 0, seen: null, mine: null };
  let sweep = null;
  let figures = null;
  let asking = null;
  let again = false;
  let goingOn = false;
  let wanted = null;

  const element = (tag, text, className) => {
    const node = document.createElement(tag);
    if (text) node.textContent = text;
    if (className) node.className = className;
    return node;
  };

  // What is shown, and how a sweep or a cell goes.

  const picker = element("select");
  picker.setAttribute("aria-label", "Results that are shown");
  picker.addEventListener("change", () => turnTo(picker.value));
  bar.append("Results ", picker);
  const state = element("b");
  const message = element("span");
  message.setAttribute("role", "status");
  const progress = element("progress");
  progress.setAttribute("aria-label", "Cells that are done");
  const stop = element("button", "Stop");
  stop.type = "button";
  stop.addEventListener("click", () => send.stop());
  work.append(state, progress, message, stop);

  function say(text) {
    notice.textContent = text ?? "";
    notice.hidden = !text;
  }

  function showWork(now) {
    const cell = now?.cell && !(ENDED.includes(now.cell.state) && now.cell.state !== "failed") ? now.cell : null;
    // A cell is what somebody waits for right now; a sweep goes on behind it.
    const shown = cell ?? now?.sweep;
    work.hidden = !shown;
    goingOn = Boolean([now?.sweep, now?.cell].some((each) => each && !ENDED.includes(each.state)));
    if (!shown) return;
    work.dataset.state = shown.state;
    state.textContent = cell ? `${cell.ask.prompt}: ${cell.state}` : `Sweep ${shown.state}, ${shown.done} of ${shown.total} cells`;
    if (message.textContent !== shown.message) message.textContent = shown.message;
    progress.hidden = Boolean(cell);
    if (!cell) {
      progress.max = shown.total;
      progress.value = shown.done;
    }
    stop.hidden = !goingOn || shown.state === "opening";
  }

  // Whose trace the reader asked for is shown as soon as it is there, if the reader is still here.
  function follow(cell) {
    if (!wanted || !cell || cell.ask.prompt !== wanted.prompt || cell.ask.key !== wanted.key) return;
    if (!ENDED.includes(cell.state)) return;
    wanted = null;
    if (cell.state === "done" && cell.trace && root.clientWidth) send.show({ ...cell.ask, trace: cell.trace });
  }

  const ready = Promise.all(["sweep", "figures"].map(dflashLab.load)).then(([{ mountSweep }, { mountFigures }]) => {
    sweep = mountSweep(gridSlot, {
      getCell: async (key) => {
        const answer = await server.sweep_cell({ source: here.source, key });
        if (answer.error) throw new Error(answer.error);
        return answer;
      },
      onSlice: (slice) => {
        here.slice = slice;
        look();
      },
      onOpen: ({ key, prompt }) => {
        wanted = { key, prompt };
        say(null);
        // The first one loads much: that it was heard is said at once.
        showWork({ cell: { state: "opening", message: "", ask: wanted } });
        send.open({ source: here.source, key, prompt });
      },
    });
    figures = mountFigures(figureSlot, { plotly: dflashLab.plotly, templates });
  });

  function fill(options, value) {
    const key = JSON.stringify(options);
    if (picker.dataset.key !== key) {
      picker.dataset.key = key;
      picker.replaceChildren(...options.map(([id, label]) => new Option(label, id)));
    }
    picker.value = value;
  }

  async function ask() {
    await ready;
    const asked = here.source;
    const answer = await server.sweep_view(here);
    // Turned elsewhere meanwhile: the answer to that is on its way.
    if (here.source !== asked) return;
    if (!answer) throw new Error("dflash-lab could not answer; what went wrong is in its terminal");
    here.source = answer.source;
    fill(answer.sources, answer.source);
    showWork(answer.work);
    follow(answer.work?.cell);
    if (answer.seen === undefined) return;
    here.seen = answer.seen;
    gridSlot.hidden = figureSlot.hidden = !answer.view;
    if (answer.problem && !goingOn) say(answer.problem);
    if (!answer.view) return;
    here.slice = answer.view.slice;
    if (answer.view.warnings.length) say(answer.view.warnings.join(" "));
    sweep.show(answer.view);
    figures.show(answer.view);
  }

  // One question at a time; what is wished for meanwhile is asked afterwards.
  function look() {
    if (asking) {
      again = true;
      return;
    }
    asking = ask().catch((error) => say(error.message)).finally(() => {
      asking = null;
      if (again) {
        again = false;
        look();
      }
    });
  }

  function turnTo(source) {
    Object.assign(here, { source, slice: 0, seen: null });
    say(null);
    look();
  }

  const seenByNobody = () => document.hidden || !root.clientWidth;
  let turn = 0;
  const timer = setInterval(() => {
    if (!root.isConnected) clearInterval(timer);
    else if (!seenByNobody() && (goingOn || ++turn % IDLE_TURNS === 0)) look();
  }, EVERY_MS);
  // The tab was not selected when the page came: the first look is when it is, and one whenever it is again.
  let visible = false;
  new ResizeObserver(() => {
    if (!visible && !seenByNobody()) look();
    visible = !seenByNobody();
  }).observe(root);

  watch("value", () => {
    const value = props.value;
    if (!value) return;
    say(value.notice);
    if (value.mine) here.mine = value.mine;
    if (value.show) {
      wanted = null;
      send.show(value.show);
    } else if (value.source) turnTo(value.source);
    else look();
  });
};
