// The past in the browser: the panels of the live page, driven by a clock of our own. A span is loaded whole; a moment brings the sentence
// and the numbers that were on screen then. What came later lies under a veil.

const SPEEDS = [1, 5, 20, 60, 120];
const DAY_MS = 86_400_000;

const stamp = (ms, days) => new Date(ms).toISOString().slice(days ? 5 : 11, 19).replace("T", " ");

class Player extends View {
  frame(panels) {
    super.frame(panels);
    this.root.dataset.testid = "past";
    this.bar = make("div", "pw-bar", null);
    this.root.insertBefore(this.bar, this.head);
    const button = (text, title, act) => {
      const node = make("button", "", this.bar, text);
      node.title = title;
      node.onclick = act;
      return node;
    };
    this.toggle = button("play", "space", () => (this.playing ? this.pause() : this.play()));
    this.toggle.dataset.testid = "play";
    button("−1 s", "left arrow", () => this.step(-1000));
    button("+1 s", "right arrow", () => this.step(1000));
    button("◂ event", "to the event before", () => this.hop(-1));
    button("event ▸", "to the next event", () => this.hop(1));
    this.speed = make("select", "", this.bar);
    this.speed.title = "speed";
    for (const speed of SPEEDS) make("option", "", this.speed, `${speed}×`).value = speed;
    this.speed.value = 5;
    this.moment = make("output", "pw-moment", this.bar);
    this.moment.dataset.testid = "moment";
    const later = make("label", "pw-later", this.bar);
    this.veil = make("input", "", later);
    this.veil.type = "checkbox";
    this.veil.checked = true;
    later.append(" hide what came later");
    this.veil.onchange = () => this.place();
    this.copied = button("copy link", "a link to this moment", () => this.copy());
    button("mark as incident", "name this span", () => this.mark());
    const track = make("div", "pw-track", null);
    this.root.insertBefore(track, this.head);
    this.scrubber = make("input", "", track);
    this.scrubber.type = "range";
    this.scrubber.setAttribute("aria-label", "moment");
    this.scrubber.oninput = () => this.seek(Number(this.scrubber.value));
    this.ticks = make("div", "pw-ticks", track);
    const past = make("div", "pw-past", null);
    this.grid.replaceWith(past);
    past.append(this.grid);
    const aside = make("aside", "pw-events", past);
    make("h3", "", aside, "What happened");
    this.list = make("ol", "", aside);
    this.list.dataset.testid = "events";
    this.differs = make("p", "pw-differs", null);
    this.root.insertBefore(this.differs, past);
    for (const plot of this.plots.values()) {
      const stage = make("div", "pw-stage");
      plot.node.replaceWith(stage);
      stage.append(plot.node);
      const cover = make("div", "pw-cover", stage);
      make("i", "", cover);
      make("b", "", cover);
    }
    this.keys = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return; // the browser's own: back, forward
      if (["INPUT", "TEXTAREA", "SELECT", "BUTTON"].includes(event.target.tagName) || event.target.isContentEditable) return;
      const act = { " ": () => (this.playing ? this.pause() : this.play()), ArrowLeft: () => this.step(-1000), ArrowRight: () => this.step(1000) }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    document.addEventListener("keydown", this.keys);
  }

  stop() {
    this.playing = false;
    clearTimeout(this.remembering); // the address is another page's by then
    document.removeEventListener("keydown", this.keys);
    super.stop();
  }

  configure(data) {
    if (!this.data) {
      this.data = data;
      this.root.dataset.page = data.page;
      this.frame(data.panels);
    }
    this.data = data;
    const theme = (this.root.dataset.theme = this.theme());
    if (data.at !== this.told) {
      this.told = data.at;
      this.at = data.at;
    }
    const wanted = JSON.stringify([data.deployment, data.start, data.end, data.anew, theme]);
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    this.zoom = null;
    this.uirevision += 1;
    this.load();
  }

  poll() {} // nothing here is live

  age() {} // what is past grows no older

  async load() {
    const mine = ++this.generation;
    this.pause();
    this.window = [this.data.start, this.data.end];
    Object.assign(this.scrubber, { min: this.data.start, max: this.data.end, step: 1000 });
    this.root.dataset.source = "loading";
    this.broken = false;
    say(this.differs, this.data.anew ? "Recomputing…" : "");
    this.seek(this.at);
    try {
      const Plotly = await loadPlotly(this.data.plotly);
      const asked = { page: this.data.page, deployment: this.data.deployment, theme: this.root.dataset.theme };
      const body = await this.fetch("span", { ...asked, start: this.data.start / 1000, end: this.data.end / 1000, anew: this.data.anew ? 1 : 0 });
      if (mine !== this.generation) return;
      if (body.source.state !== "ok") return this.refuse(body.source.title, body.source.todo);
      this.root.dataset.source = "ok";
      this.root.dataset.rows = body.rows;
      say(this.differs, body.differs || "");
      this.mount(body);
      this.append(body, Plotly);
      this.happened(body.events);
      this.place();
    } catch (error) {
      if (mine === this.generation) this.refuse("Cannot tell.", `The dashboard did not answer (${error.message}). Reload to try again.`);
    }
  }

  async fetch(what, parameters) {
    const answer = await fetch(`/past/${what}?${new URLSearchParams(parameters)}`, { cache: "no-store" });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error);
    return body;
  }

  // Without its charts the page says why; a moment that can be read does not take that away.
  refuse(title, todo) {
    this.broken = true;
    this.fail(title, todo);
  }

  fail(title, todo) {
    this.root.dataset.source = "down";
    this.verdict.dataset.level = "unknown";
    say(this.short, title);
    say(this.evidence, "");
    say(this.todo, todo);
  }

  append(body, Plotly) {
    for (const [key, points] of Object.entries(body.points)) {
      const plot = this.plots.get(key);
      if (plot?.figure) for (const [uid, arrays] of Object.entries(points)) this.extend(plot.traces.get(uid), arrays, body.xs[arrays.x], null);
    }
    this.shapes = body.shapes;
    this.draw(Plotly);
  }

  react(Plotly, plot) {
    const drawn = plot.drawn;
    super.react(Plotly, plot);
    // The marker and the veil lie on the plots' own area, all of them where a chart has two.
    const outer = plot.node.parentElement.getBoundingClientRect();
    const areas = [...plot.node.querySelectorAll(".nsewdrag")].map((area) => area.getBoundingClientRect());
    if (areas.length) {
      const cover = plot.node.nextElementSibling.style;
      cover.left = `${areas[0].left - outer.left}px`;
      cover.width = `${areas[0].width}px`;
      cover.top = `${Math.min(...areas.map((a) => a.top)) - outer.top - 17}px`;
      cover.bottom = `${outer.bottom - Math.max(...areas.map((a) => a.bottom))}px`;
    }
    if (!drawn) plot.node.on("plotly_click", (event) => this.seek(typeof event.points[0].x === "number" ? event.points[0].x : Date.parse(`${String(event.points[0].x).replace(" ", "T")}Z`)));
    this.place();
  }

  // One moment at a time is asked for; of those that came while an answer was under way only the last.
  async ask() {
    if (this.asking) { this.again = true; return; }
    this.asking = true;
    const at = this.at;
    try {
      const body = await this.fetch("moment", { page: this.data.page, deployment: this.data.deployment, at: at / 1000 });
      if (body.source.state !== "ok") throw new Error(body.source.todo);
      if (!this.broken) {
        if (this.root.dataset.source === "down") this.root.dataset.source = "ok";
        this.show(body);
      }
    } catch (error) {
      if (!this.broken) this.fail("Cannot tell.", `This moment could not be read: ${error.message}`);
    }
    this.asking = false;
    if (this.again) { this.again = false; this.ask(); }
  }

  show(body) {
    this.verdict.dataset.level = body.verdict.level;
    say(this.short, body.verdict.answer);
    say(this.evidence, body.verdict.text);
    say(this.todo, body.verdict.todo);
    say(this.stamp, `${this.data.deployment.slice(0, 60)} · as on screen at ${stamp(body.now * 1000, true)} UTC`);
    this.gauge(body);
    for (const [key, seen] of this.tiles) {
      const tile = body.tiles.find((t) => t.key === key);
      const age = tile?.as_of ? body.now - tile.as_of : null;
      say(seen.age, age === null ? "" : `${Math.max(0, Math.round(age))} s`);
      seen.age.dataset.old = age > 15 ? "dead" : age > 5 ? "old" : "";
    }
    this.utter(body.said);
    this.root.dataset.at = Math.round(body.now * 1000);
  }

  happened(events) {
    this.events = events;
    this.current = null;
    this.list.replaceChildren();
    this.ticks.replaceChildren();
    const days = this.data.end - this.data.start > DAY_MS / 2;
    for (const event of events.slice(0, 1000)) {
      const item = make("li", "", this.list);
      item.dataset.kind = event.kind;
      const go = make("button", "", item);
      make("time", "", go, stamp(event.at, days));
      make("b", "", go, event.kind);
      make("span", "", go, [event.what, event.who && `by ${event.who}`, event.why].filter(Boolean).join(" · "));
      go.onclick = () => this.seek(event.at);
      const tick = make("i", "", this.ticks);
      tick.dataset.kind = event.kind;
      tick.style.left = `${(100 * (event.at - this.data.start)) / (this.data.end - this.data.start)}%`;
    }
    if (!events.length) make("li", "pw-none", this.list, "Nothing but requests.");
    if (events.length > 1000) make("li", "pw-none", this.list, `and ${events.length - 1000} more: choose a shorter span`);
  }

  // Where the marker stands, on every chart at once.
  place() {
    const [start, end] = this.zoom ?? this.window;
    const share = (this.at - start) / (end - start);
    this.root.style.setProperty("--at", Math.min(1, Math.max(0, share)));
    this.root.dataset.marker = share >= 0 && share <= 1 ? "in" : "out";
    this.root.dataset.veil = this.veil.checked ? "on" : "off";
    this.scrubber.value = this.at;
    say(this.moment, `${stamp(this.at, true)} UTC`);
    if (!this.events) return;
    const now = this.events.findLastIndex((event) => event.at <= this.at);
    if (now === this.current) return;
    this.list.children[this.current]?.removeAttribute("aria-current");
    this.current = now;
    const item = this.list.children[now];
    if (!item || now < 0) return;
    item.setAttribute("aria-current", "true");
    this.list.scrollTop = item.offsetTop - this.list.clientHeight / 2;
  }

  seek(ms) {
    this.at = Math.min(this.data.end, Math.max(this.data.start, ms));
    this.place();
    this.ask();
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      const url = new URL(location.href);
      url.searchParams.set("at", Math.round(this.at / 1000));
      history.replaceState(history.state, "", url);
    }, 400);
  }

  step(ms) {
    this.pause();
    this.seek(Math.round(this.at / 1000) * 1000 + ms);
  }

  hop(direction) {
    const events = this.events || [];
    const next = direction > 0 ? events.find((e) => e.at > this.at + 1) : events.findLast((e) => e.at < this.at - 1);
    if (next) this.seek(next.at);
  }

  play() {
    if (this.at >= this.data.end) this.at = this.data.start;
    this.playing = true;
    say(this.toggle, "pause");
    let before = performance.now(), asked = before;
    const turn = (now) => {
      if (!this.playing) return;
      // No picture is drawn of a tab that is not looked at: it goes on where it was left, instead of leaping over what nobody saw.
      this.at = Math.min(this.data.end, this.at + Math.min(1000, now - before) * Number(this.speed.value));
      before = now;
      this.place();
      if (now - asked > 400 && !this.asking) { asked = now; this.ask(); }
      if (this.at >= this.data.end) return this.pause();
      requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    say(this.toggle, "play");
    this.seek(Math.round(this.at / 1000) * 1000);
  }

  async copy() {
    const url = new URL(location.href);
    url.searchParams.set("at", Math.round(this.at / 1000));
    try {
      await navigator.clipboard.writeText(url.href);
      say(this.copied, "copied");
    } catch {
      prompt("The link to this moment", url.href);
    }
    setTimeout(() => say(this.copied, "copy link"), 2000);
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  let view = views.get(parentElement);
  if (!view) views.set(parentElement, (view = new Player(parentElement)));
  view.setTriggerValue = setTriggerValue;
  view.configure(data);
  return () => { view.stop(); views.delete(parentElement); };
}
