// The chain of an override (wanted, decided, acknowledged, observed) and the board of the loop, as live.js hears them once a second.
// Text nodes only. The chain tells Python the revision it shows.

function left(seconds) {
  const s = Math.max(0, Math.ceil(seconds));
  const minutes = Math.floor(s / 60) % 60;
  if (s < 60) return `${s} s`;
  return s >= 3600 ? `${Math.floor(s / 3600)} h ${String(minutes).padStart(2, "0")} min` : `${minutes} min ${String(s % 60).padStart(2, "0")} s`;
}

// What stands beside the live component and hears it.
class Side {
  constructor(parent, name, className) {
    this.root = make("div", className, parent);
    this.root.dataset.testid = name;
  }

  listen() {
    this.hear = (event) => this.take(event.detail);
    window.addEventListener("poascope", this.hear);
    this.ticker = setInterval(() => this.tick(), 1000);
    if (window.poascopeLast) this.take(window.poascopeLast);
  }

  stop() {
    window.removeEventListener("poascope", this.hear);
    clearInterval(this.ticker);
    this.root.remove();
  }
}

class Chain extends Side {
  constructor(parent) {
    super(parent, "chain", "pw pw-side");
    this.list = make("dl", "pw-chain", this.root);
    this.run = make("p", "pw-run", this.root);
    this.why = make("p", "pw-why", this.root);
    this.problem = make("p", "pw-problem", this.root);
    this.problem.setAttribute("role", "alert");
    this.listen();
  }

  take({ chain, theme, skew }) {
    this.root.dataset.theme = theme;
    this.chain = chain;
    this.skew = skew;
    const said = JSON.stringify(chain.links);
    if (said !== this.said) {
      this.said = said;
      this.list.replaceChildren();
      for (const link of chain.links) {
        make("dt", "", this.list, link.name);
        const value = make("dd", link.good ? "" : "pw-off", this.list, link.text);
        value.dataset.link = link.name.toLowerCase();
        const when = [link.by, link.at ? clock(link.at) : ""].filter(Boolean).join(", ");
        if (when) make("small", "", value, when);
      }
    }
    this.problem.textContent = chain.problem ? `Overrides cannot be sent now. ${chain.problem}` : "";
    this.why.textContent = chain.running ? "" : chain.why;
    this.tick();
    if (!chain.problem && this.tell && chain.revision !== this.told) {
      this.told = chain.revision;
      this.tell("revision", chain.revision);
    }
  }

  tick() {
    if (!this.chain) return;
    const { running, expires_at: end, reason } = this.chain;
    const text = running ? `for another ${left(end - Date.now() / 1000 - this.skew)}` : "";
    const said = `${running}${text}${reason}${this.chain.answers}`;
    if (this.ran === said) return;
    this.ran = said;
    this.run.replaceChildren();
    if (!running) return;
    make("b", "", this.run, running);
    make("b", "", this.run, text);
    make("span", "", this.run, reason);
    if (!this.chain.answers) make("small", "", this.run, "No controller answers: the time is that of the bucket, and actuators end it by themselves.");
  }
}

class Board extends Side {
  constructor(parent) {
    super(parent, "board", "pw pw-side pw-board");
    this.title = make("p", "pw-loop", this.root);
    this.said = make("p", "pw-why", this.root);
    this.list = make("dl", "pw-chain", this.root);
    this.listen();
  }

  take({ board, theme, skew }) {
    this.root.dataset.theme = theme;
    this.root.dataset.state = board.state;
    this.skew = skew;
    this.title.textContent = board.title;
    this.said.textContent = board.said;
    this.list.replaceChildren();
    this.counted = [];
    for (const fact of board.facts) {
      make("dt", "", this.list, fact.name);
      const value = make("dd", fact.good ? "" : "pw-off", this.list, fact.text);
      value.dataset.fact = fact.name;
      if (fact.until) this.counted.push([make("span", "", value), fact.until]);
      if (fact.note) make("small", "", value, fact.note);
    }
    this.tick();
  }

  tick() {
    for (const [node, until] of this.counted ?? []) node.textContent = ` ${left(until - Date.now() / 1000 - this.skew)}`;
  }
}

export default function ({ data, parentElement, setStateValue }) {
  let view = views.get(parentElement);
  if (data.note !== null) {
    if (!view) views.set(parentElement, (view = { root: make("p", "pw-note", parentElement), stop() { this.root.remove(); } }));
    view.root.textContent = data.note;
    view.root.dataset.kind = data.kind;
    view.root.setAttribute("role", "status");
  } else {
    if (!view) views.set(parentElement, (view = data.board ? new Board(parentElement) : new Chain(parentElement)));
    view.tell = setStateValue;
    if (window.poascopeLast) view.take(window.poascopeLast);
  }
  return () => { view.stop(); views.delete(parentElement); };
}
