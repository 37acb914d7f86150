// The Live tab: asks the server once a second for what changed, while somebody looks. Data is set as textContent only.
window.dflashLive = (root, props, server, watch, stop) => {
  const EVERY_MS = 1000;
  const [notice, bar, slot, cardSlot] = root.querySelectorAll(".dfa-notice, .dfa-live-bar, .dfa-live-pane, .dfa-live-card");
  const select = (label) => {
    const node = document.createElement("select");
    node.setAttribute("aria-label", label);
    return node;
  };
  const picker = select("What is shown");
  // Which published values a server is shown beside: of a load that is not ours nobody knows the data set.
  const dataset = select("Published data set");
  const concurrency = select("Published concurrency");
  const beside = document.createElement("span");
  const welcome = document.createElement("p");
  welcome.className = "dfa-live-welcome";
  welcome.textContent =
    "Nothing is shown yet. Give the address of an SGLang or vLLM server and watch its counters, or measure it with a load; " +
    "or open runs of dflash-lab live bench. Without a server, dflash-lab live serve is one.";
  const here = { source: null, mine: null, seen: null, card: null, beside: null };
  let live = null;
  let card = null;
  let asking = null;
  let again = false;
  let failed = false;

  function say(text) {
    notice.textContent = text ?? "";
    notice.hidden = !text;
  }

  const ready = Promise.all(["live", "card"].map(dflashLab.load)).then(([{ mountLive }, { mountCard }]) => {
    live = mountLive(slot, { plotly: dflashLab.plotly, onStop: stop });
    card = mountCard(cardSlot);
  });

  function fill(node, options, value) {
    const key = JSON.stringify(options);
    if (node.dataset.key !== key) {
      node.dataset.key = key;
      node.replaceChildren(...options.map(([id, label]) => new Option(label, id)));
    }
    node.value = value;
  }

  function offerBeside({ choices, beside: shown }) {
    beside.hidden = !choices?.length;
    if (beside.hidden) return;
    fill(dataset, choices[0], shown[0]);
    fill(concurrency, choices[1], shown[1]);
  }

  async function ask() {
    await ready;
    const asked = here.source;
    const answer = await server.live_view(here);
    // Turned elsewhere meanwhile: the answer to that is on its way.
    if (here.source !== asked) return;
    if (!answer) throw new Error("dflash-lab could not answer; what went wrong is in its terminal");
    here.source = answer.source;
    fill(picker, answer.sources, answer.source);
    bar.hidden = !answer.source;
    if (answer.view) {
      here.seen = answer.version;
      offerBeside(answer.view);
      live.show(answer.view);
    }
    if (answer.card) {
      here.card = answer.cardVersion;
      card.show(answer.card);
    }
    slot.hidden = !here.seen;
    welcome.hidden = !slot.hidden;
  }

  // One question at a time; what is wished for meanwhile is asked afterwards.
  function look() {
    if (asking) {
      again = true;
      return;
    }
    asking = ask().then(() => { if (failed) say(null); failed = false; }, (error) => {
      failed = true;
      say(error.message);
    }).finally(() => {
      asking = null;
      if (again) {
        again = false;
        look();
      }
    });
  }

  function turnTo(source) {
    here.source = source;
    here.seen = null;
    look();
  }

  const seenByNobody = () => document.hidden || !root.clientWidth;
  const timer = setInterval(() => {
    if (!root.isConnected) clearInterval(timer);
    else if (!seenByNobody()) look();
  }, EVERY_MS);
  // The tab was not selected when the page came: the first look is when it is.
  new ResizeObserver(() => { if (!seenByNobody() && !here.card) look(); }).observe(root);

  picker.addEventListener("change", () => turnTo(picker.value));
  for (const node of [dataset, concurrency]) {
    node.addEventListener("change", () => {
      here.beside = [dataset.value, concurrency.value];
      look();
    });
  }
  beside.append("beside published values of ", dataset, " at concurrency ", concurrency);
  bar.append("Showing ", picker, beside);
  bar.hidden = slot.hidden = welcome.hidden = true;
  slot.before(welcome);
  watch("value", () => {
    const value = props.value;
    if (!value) return;
    say(value.notice);
    if (value.mine) here.mine = value.mine;
    if (value.source) turnTo(value.source);
  });
};
