// The audit log: asks /log every other second, filters what it has, and shows everything as text.

const stamp = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");

class Log {
  constructor(parent) {
    this.root = make("div", "pw pw-log", parent);
    this.root.dataset.testid = "log";
    this.said = make("p", "pw-log-said", this.root, "Reading the log…");
    this.said.setAttribute("role", "status");
    this.list = make("ol", "", this.root);
    this.generation = 0;
    this.hear = (event) => { this.root.dataset.theme = event.detail.theme; };
    window.addEventListener("poascope", this.hear);
    if (window.poascopeLast) this.hear({ detail: window.poascopeLast });
    this.visible = () => { if (!document.hidden) this.poll(); };
    document.addEventListener("visibilitychange", this.visible);
  }

  stop() {
    this.generation += 1;
    clearTimeout(this.timer);
    this.abort?.abort();
    window.removeEventListener("poascope", this.hear);
    document.removeEventListener("visibilitychange", this.visible);
    this.root.remove();
  }

  configure(data) {
    const asked = JSON.stringify([data.deployment, data.since]);
    this.data = data;
    if (asked !== this.asked) {
      this.asked = asked;
      this.poll();
    } else if (this.body) this.draw();
  }

  async poll() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const mine = ++this.generation;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    const limit = setTimeout(() => abort.abort(), 15000);
    try {
      const query = new URLSearchParams({ deployment: this.data.deployment });
      if (this.data.since !== null) query.set("since", this.data.since);
      const answer = await fetch(`/log?${query}`, { signal: abort.signal, cache: "no-store" });
      const body = await answer.json();
      if (mine !== this.generation) return;
      if (!answer.ok || body.error) this.say(`The log cannot be read now: ${body.error}`);
      else { this.body = body; this.draw(); }
    } catch {
      if (mine === this.generation) this.say("The log cannot be read now: the dashboard does not answer.");
    }
    clearTimeout(limit);
    if (mine === this.generation) this.timer = setTimeout(() => this.poll(), 2000);
  }

  say(text) {
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  draw() {
    const { kinds, who, text } = this.data;
    const has = (value, part) => value.toLowerCase().includes(part.trim().toLowerCase());
    const all = this.body.entries;
    const shown = all.filter((e) => (!kinds.length || kinds.includes(e.kind)) && has(e.actor, who) && has(`${e.what} ${e.why} ${e.effect.join(" ")} ${e.doubt}`, text));
    const more = this.body.left_out ? `, and ${this.body.left_out} older ones are not listed` : "";
    this.say(shown.length === all.length ? `${all.length} entries${more}` : `${shown.length} of ${all.length} entries${more}`);
    const drawn = JSON.stringify(shown);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const rows = shown.map((entry) => {
      const item = make("li");
      item.dataset.kind = entry.kind;
      if (!entry.good) item.dataset.bad = "";
      make("time", "", item, stamp(entry.at));
      make("b", "", item, entry.kind);
      make("span", "pw-who", item, entry.actor);
      const what = make("div", "", item);
      if (entry.what) make("strong", "", what, entry.what);
      if (entry.why) make("span", "pw-why", what, entry.why);
      for (const line of entry.effect) make("span", "pw-effect", what, line);
      if (entry.doubt) make("span", "pw-doubt", what, entry.effect.length ? `Not to be claimed: ${entry.doubt}` : `Effect: ${entry.doubt}`);
      return item;
    });
    this.list.replaceChildren(...rows);
  }
}

export default function ({ data, parentElement }) {
  let view = views.get(parentElement);
  if (!view) views.set(parentElement, (view = new Log(parentElement)));
  view.configure(data);
  return () => { view.stop(); views.delete(parentElement); };
}
