// The live page in the browser. Figures come once from Python; then each second brings only points, and this file appends them by uid.
// Nothing from outside is ever HTML here: every label is a text node. One View per mounted element, one timer per View.

let plotly = null;

function loadPlotly(path) {
  plotly ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    const script = document.createElement("script");
    script.src = path;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { plotly = null; reject(new Error("plotly.js did not load")); };
    document.head.append(script);
  });
  return plotly;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function ago(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s ago`;
  if (s < 7200) return `${Math.floor(s / 60)} min ago`;
  return `${Math.floor(s / 3600)} h ago`;
}

// Names in figures are escaped for Plotly, which reads a little HTML; a text node wants them as they were.
const unescaped = (name) => name.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");

function sparkline(svg, points) {
  const known = points.filter((v) => v !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const middle = (low + high) / 2, half = Math.max((high - low) / 2, Math.abs(middle) * 0.15, 1e-9);
  let path = "", pen = "M";
  points.forEach((v, i) => {
    if (v === null) { pen = "M"; return; }
    const x = (i + 60 - points.length) * (100 / 59), y = 11 - ((v - middle) / half) * 9;
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  svg.firstChild.setAttribute("d", path);
}

class View {
  constructor(parent) {
    this.root = make("div", "pw", parent);
    this.root.dataset.testid = "live";
    this.plots = new Map();
    this.tiles = new Map();
    this.said = new Map();
    this.trends = {};
    this.zoom = null;
    this.uirevision = 1;
    this.cursor = null;
    this.last = null;
    this.skew = 0;
    this.generation = 0;
    this.visible = () => { if (!document.hidden) this.poll(); };
    document.addEventListener("visibilitychange", this.visible);
    this.ticker = setInterval(() => this.age(), 1000);
  }

  stop() {
    this.generation += 1;
    clearTimeout(this.timer);
    clearInterval(this.ticker);
    this.abort?.abort();
    document.removeEventListener("visibilitychange", this.visible);
    for (const plot of this.plots.values()) if (plot.drawn) window.Plotly.purge(plot.node);
    this.root.remove();
  }

  // Called by Streamlit on the first mount, on every rerun and on a change of theme: does nothing unless something changed.
  configure(data) {
    if (!this.data) { this.data = data; this.root.dataset.page = data.page; this.frame(data.panels); }
    const theme = this.theme();
    const wanted = JSON.stringify([data.deployment, data.range_s, theme]);
    const paused = this.data.paused;
    this.data = data;
    this.root.dataset.theme = theme;
    if (wanted !== this.wanted) {
      this.wanted = wanted;
      this.restart();
    } else if (paused && !data.paused) {
      this.poll();
    }
    this.age();
  }

  restart() {
    this.cursor = null;
    this.zoom = null;
    this.uirevision += 1;
    this.once = true;
    this.poll();
  }

  theme() {
    const colour = getComputedStyle(this.root).getPropertyValue("--st-background-color") || getComputedStyle(document.body).backgroundColor;
    const probe = make("span", "", this.root);
    probe.style.color = colour.trim();
    const [r, g, b] = (getComputedStyle(probe).color.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
    probe.remove();
    return 0.3 * r + 0.6 * g + 0.1 * b < 128 ? "dark" : "light";
  }

  frame(panels) {
    const head = (this.head = make("header", "pw-head", this.root));
    this.verdict = make("p", "pw-verdict", head);
    this.short = make("b", "", this.verdict, "Reading the first second…");
    this.evidence = make("span", "", this.verdict);
    this.verdict.setAttribute("role", "status");
    this.sub = make("p", "pw-sub", head);
    this.stamp = make("span", "pw-stamp", this.sub);
    this.todo = make("span", "pw-todo", this.sub);
    this.lost = make("p", "pw-down", head);
    this.lost.hidden = true;
    this.lost.setAttribute("role", "alert");
    this.row = make("div", "pw-tiles", this.root);
    this.blank = make("div", "pw-blank", this.root);
    this.blank.hidden = true;
    this.grid = make("div", "pw-grid", this.root);
    for (const panel of panels) {
      const section = make("section", "pw-panel", this.grid);
      section.dataset.panel = panel.key;
      const title = make("header", "", section);
      make("h3", "", title, panel.title);
      title.title = panel.hint;
      const said = make("div", "pw-said", section);
      this.said.set(panel.key, said);
      if (!panel.chart) { section.dataset.text = ""; continue; }
      const legend = make("div", "pw-legend", title);
      const reset = make("button", "pw-reset", title, "reset zoom");
      reset.hidden = true;
      reset.onclick = () => this.unzoom();
      const name = make("button", "pw-reset", title, "mark as incident");
      name.hidden = true;
      name.onclick = () => this.mark();
      const node = make("div", "pw-plot", section);
      this.plots.set(panel.key, { node, reset, name, legend, named: panel.named, hidden: new Set(), figure: null, drawn: false, traces: new Map() });
    }
    this.foot = make("footer", "pw-sources", this.root);
  }

  async poll() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const still = this.data.paused && !this.once; // paused: the override is followed, the picture stands
    const mine = ++this.generation;
    this.abort?.abort();
    const abort = (this.abort = new AbortController()); // this poll's own: its time limit must not end a later one
    let wait = 1000;
    try {
      const Plotly = await loadPlotly(this.data.plotly);
      const query = new URLSearchParams({ page: this.data.page, range: this.data.range_s, theme: this.root.dataset.theme });
      if (this.data.deployment !== null) query.set("deployment", this.data.deployment);
      if (this.cursor !== null) query.set("after", this.cursor);
      if (still) query.set("points", "0");
      const limit = setTimeout(() => abort.abort(), 8000);
      const answer = await fetch(`/live?${query}`, { signal: abort.signal, cache: "no-store" });
      clearTimeout(limit);
      if (!answer.ok) throw new Error(`answered ${answer.status}`);
      const body = await answer.json();
      if (mine !== this.generation) return;
      this.skew = body.now - Date.now() / 1000;
      this.failed = null;
      wait = body.next_ms + 40 + Math.random() * 160;
      this.tell(body);
      this.announce(body);
      if (!still) {
        this.once = false;
        this.take(body, Plotly);
      }
    } catch (error) {
      if (mine !== this.generation) return;
      this.failed ??= Date.now() / 1000;
      this.unreachable();
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), wait);
  }

  // A deployment that comes up while the page is open: the selector and the override are Streamlit's, so one rerun is due.
  announce(body) {
    const heard = JSON.stringify(body.deployments);
    if (heard === JSON.stringify(this.data.deployments) || heard === this.announced) return;
    this.announced = heard;
    this.setStateValue("deployments", body.deployments);
  }

  // For the chain of the override and the board of the loop: they come with the same answer.
  tell(body) {
    window.poascopeLast = { chain: body.chain, board: body.board, theme: this.root.dataset.theme, skew: this.skew };
    window.dispatchEvent(new CustomEvent("poascope", { detail: window.poascopeLast }));
  }

  unreachable() {
    this.root.dataset.source = "dash";
    this.verdict.dataset.level = "unknown";
    say(this.short, "Cannot tell.");
    say(this.evidence, `The dashboard has not answered since ${clock(this.failed + this.skew)} UTC.`);
    say(this.todo, "Trying again every second.");
  }

  take(body, Plotly) {
    this.last = body;
    const state = body.source.state;
    this.root.dataset.source = state;
    const down = state === "down";
    this.verdict.dataset.level = state === "ok" ? body.verdict.level : "unknown";
    const ok = state === "ok";
    say(this.short, ok ? body.verdict.answer : down ? "Cannot tell." : body.source.title);
    say(this.evidence, ok ? body.verdict.text : down ? `No answer from the collector since ${clock(body.down_since)} UTC.` : "");
    say(this.todo, down || state === "empty" ? body.source.todo : body.verdict.todo);
    const nothing = state === "empty" || (down && !this.cursor);
    this.row.hidden = this.grid.hidden = this.head.hidden = this.foot.hidden = nothing;
    this.blank.hidden = !nothing;
    if (nothing) this.explain(body);
    this.strip(body.sources, down);
    if (!nothing) this.gauge(body);
    if (!nothing) this.utter(body.said);
    if (body.figures) this.mount(body);
    if (body.points) this.append(body, Plotly);
    this.age();
  }

  explain(body) {
    this.blank.replaceChildren();
    make("h2", "", this.blank, body.source.title);
    make("p", "", this.blank, body.source.todo);
    if (body.source.detail) make("p", "pw-detail", this.blank, body.source.detail);
    if (body.source.state === "down") return;
    const list = make("ul", "", this.blank);
    for (const source of [...body.sources].sort((a, b) => (a.state === "ok") - (b.state === "ok"))) {
      const item = make("li", "", list);
      item.dataset.state = source.state;
      make("b", "", item, source.name);
      make("i", "", item, source.state);
      make("span", "", item, source.detail || "");
    }
  }

  strip(sources, down) {
    const said = JSON.stringify([sources.map((s) => [s.name, s.state, s.detail]), down]);
    if (said === this.stripped) return;
    this.stripped = said;
    // What is down is said where the eye is; the strip below has the rest.
    const lost = down ? [] : sources.filter((s) => s.state === "down");
    this.lost.hidden = !lost.length;
    this.lost.replaceChildren();
    for (const source of lost) {
      const line = make("span", "", this.lost);
      make("b", "", line, `${source.name} down`);
      make("span", "", line, source.detail);
    }
    this.foot.replaceChildren();
    for (const source of sources) {
      const item = make("span", "pw-source", this.foot);
      item.dataset.state = down ? "down" : source.state;
      make("b", "", item, source.name);
      make("i", "", item, down ? "unknown" : source.state);
      if (source.detail && source.state !== "ok") make("span", "", item, source.detail);
    }
  }

  // Sentences of the page's head, in the panels they belong to.
  utter(said) {
    for (const [key, node] of this.said) {
      const lines = said[key] || [];
      node.hidden = !lines.length;
      while (node.children.length > lines.length) node.lastChild.remove();
      lines.forEach((line, i) => say(node.children[i] ?? make("p", "", node), line));
    }
  }

  gauge(body) {
    for (const tile of body.tiles) {
      let seen = this.tiles.get(tile.key);
      if (!seen) {
        const box = make("article", "pw-tile", this.row);
        box.dataset.tile = tile.key;
        const top = make("div", "pw-label", box);
        make("span", "", top, tile.label);
        seen = { box, age: make("time", "", top) };
        const line = make("div", "pw-value", box);
        seen.value = make("strong", "", line);
        seen.unit = make("span", "pw-unit", line);
        seen.delta = make("span", "pw-delta", line);
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        svg.setAttribute("viewBox", "0 0 100 22");
        svg.setAttribute("preserveAspectRatio", "none");
        svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
        box.append(svg);
        seen.svg = svg;
        seen.trust = make("div", "pw-trust", box);
        this.tiles.set(tile.key, seen);
      }
      seen.box.dataset.state = tile.state;
      seen.box.dataset.value = tile.key === "regime" ? tile.value : "";
      say(seen.value, tile.value);
      say(seen.unit, tile.unit);
      say(seen.delta, tile.delta);
      say(seen.trust, tile.trust);
      seen.trust.title = tile.trust;
      if (body.trends) this.trends[tile.key] = body.trends[tile.key] || [];
      else if (tile.as_of !== seen.asOf) (this.trends[tile.key] ??= []).push(tile.point);
      seen.asOf = tile.as_of;
      const trend = this.trends[tile.key] || [];
      if (trend.length > 60) trend.splice(0, trend.length - 60);
      sparkline(seen.svg, trend);
    }
  }

  // Ages tick here, so that a page that gets nothing new still grows old.
  age() {
    const now = Date.now() / 1000 + this.skew;
    let newest = null;
    for (const seen of this.tiles.values()) {
      if (!seen.asOf) continue;
      const age = now - seen.asOf;
      newest = Math.max(newest ?? 0, seen.asOf);
      say(seen.age, age < 3600 ? `${Math.max(0, Math.round(age))} s` : `${Math.round(age / 3600)} h`);
      seen.age.dataset.old = age > 15 ? "dead" : age > 4 + this.data.every_s ? "old" : "";
    }
    this.root.dataset.age = newest === null ? "" : (now - newest).toFixed(3);
    if (!this.last) return;
    const name = (this.last.deployment || "").slice(0, 60);
    say(this.stamp, newest === null ? name : `${name ? `${name} · ` : ""}${this.data?.paused ? "paused · " : ""}as of ${clock(newest)} UTC, ${ago(now - newest)}`);
  }

  mount(body) {
    for (const [key, figure] of Object.entries(body.figures)) {
      const plot = this.plots.get(key);
      if (!plot) continue;
      plot.figure = figure;
      plot.traces = new Map();
      plot.marks = [];
      for (const trace of figure.data) {
        Object.assign(trace, { x: [], y: [] });
        if (trace.error_y) { trace.error_y.array = []; trace.error_y.arrayminus = []; }
        plot.traces.set(trace.uid, trace);
      }
    }
    this.shapes = [];
    for (const plot of this.plots.values()) if (plot.figure) this.legend(plot);
  }

  // Our own legend: it wraps, its names are text nodes, and a click hides a line until the next click.
  legend(plot) {
    plot.legend.replaceChildren();
    for (const trace of plot.figure.data) {
      if (trace.showlegend === false) continue;
      const entry = make("button", "", plot.legend);
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", "0 0 18 8");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
      stroke.setAttribute("d", "M0 4H18");
      stroke.style.stroke = trace.line.color;
      stroke.style.strokeWidth = trace.line.width;
      if (trace.line.dash && trace.line.dash !== "solid") stroke.style.strokeDasharray = trace.line.dash === "dot" ? "1.5 2" : "5 2";
      svg.append(stroke);
      if (trace.meta === "hollow") {
        const inside = stroke.cloneNode();
        inside.style.stroke = "var(--pw-panel)";
        inside.style.strokeWidth = 3;
        svg.append(inside);
      }
      entry.append(svg, unescaped(trace.name));
      entry.setAttribute("aria-pressed", String(!plot.hidden.has(trace.uid)));
      entry.onclick = () => {
        if (!plot.hidden.delete(trace.uid)) plot.hidden.add(trace.uid);
        entry.setAttribute("aria-pressed", String(!plot.hidden.has(trace.uid)));
        this.draw(window.Plotly);
      };
    }
  }

  append(body, Plotly) {
    const from = body.from ?? null;
    for (const [key, points] of Object.entries(body.points)) {
      const plot = this.plots.get(key);
      if (!plot?.figure) continue;
      for (const [uid, arrays] of Object.entries(points)) {
        const trace = plot.traces.get(uid);
        if (!trace) { this.cursor = null; this.once = true; return; } // a worker this page has not met: ask for whole figures
        this.extend(trace, arrays, body.xs[arrays.x], from);
      }
    }
    if (from === null) { if (!body.figures) return; } else this.cursor = body.cursor;
    this.extendShapes(body.shapes, from);
    const start = (this.cursor ?? body.now * 1000) - this.data.range_s * 1000;
    this.window = [start, this.cursor ?? body.now * 1000];
    for (const plot of this.plots.values()) for (const trace of plot.traces.values()) this.trim(trace, start);
    this.shapes = this.shapes.filter((s) => s.x1 >= start);
    this.draw(Plotly);
  }

  lists(trace) {
    const found = [[trace, "x"], [trace, "y"]];
    if (trace.text) found.push([trace, "text"]);
    if (trace.error_y) found.push([trace.error_y, "array"], [trace.error_y, "arrayminus"]);
    return found;
  }

  // What is drawn from `from` on is replaced: the newest bin of a long range still grows.
  extend(trace, arrays, x, from) {
    if (arrays.text && !trace.text) trace.text = [];
    const source = { ...arrays, x };
    let keep = trace.x.length;
    while (keep > 0 && from !== null && trace.x[keep - 1] >= from) keep -= 1;
    for (const [owner, name] of this.lists(trace)) owner[name] = owner[name].slice(0, keep).concat(source[name] ?? []);
  }

  trim(trace, start) {
    let drop = 0;
    while (drop + 1 < trace.x.length && trace.x[drop + 1] < start) drop += 1;
    if (drop > 0) for (const [owner, name] of this.lists(trace)) owner[name] = owner[name].slice(drop);
  }

  extendShapes(fresh, from) {
    if (from !== null) {
      this.shapes = this.shapes.filter((s) => s.x0 < from);
      for (const shape of this.shapes) shape.x1 = Math.min(shape.x1, Math.max(from, shape.x0));
    }
    const families = ["band:", "over:"];
    const twins = (a, b) => a.name === b.name && a.x0 === b.x0 && a.hover === b.hover;
    for (const shape of fresh) {
      const family = families.find((f) => shape.name.startsWith(f));
      const last = family && this.shapes.findLast((s) => s.name.startsWith(family));
      if (last && last.name === shape.name && last.x1 >= shape.x0) last.x1 = Math.max(last.x1, shape.x1);
      else if (family || !this.shapes.some((s) => twins(s, shape))) this.shapes.push(shape); // a late decision is told twice
    }
  }

  // Decisions near each other share one sign on the time axis, with their number; hovering tells who and why.
  signs(shown, pixel, layout) {
    const groups = [];
    for (const mark of shown.filter((s) => s.name.startsWith("mark:")).sort((a, b) => a.x0 - b.x0)) {
      const group = groups.at(-1);
      if (group && pixel(mark.x0) - pixel(group[0].x0) < 16) group.push(mark);
      else groups.push([mark]);
    }
    return groups.map((group) => {
      const told = group.slice(-4).map((m) => m.hover).join("<br><br>");
      const person = group.some((m) => ["mark:intent", "mark:armed", "mark:disarmed"].includes(m.name));
      return {
        name: "sign", text: group.length > 1 ? `▴${group.length}` : "▴", x: group[0].x0, y: 0, xref: "x", yref: "paper", xanchor: "center", yanchor: "bottom",
        showarrow: false, captureevents: true, borderpad: 1, font: { size: 14, color: person ? layout.hoverlabel.font.color : layout.font.color },
        hovertext: group.length > 4 ? `${group.length - 4} earlier, then<br><br>${told}` : told, hoverlabel: layout.hoverlabel,
      };
    });
  }

  draw(Plotly) {
    const queue = [...this.plots.values()].filter((plot) => plot.figure);
    const mine = (this.drawing = {});
    const next = () => {
      if (mine !== this.drawing || !queue.length) return;
      this.react(Plotly, queue.shift());
      requestAnimationFrame(next); // one chart a frame: the page never stalls
    };
    requestAnimationFrame(next);
  }

  react(Plotly, plot) {
    const { layout, data } = plot.figure;
    const [start, end] = this.zoom ?? this.window;
    const box = plot.node.getBoundingClientRect();
    const pixel = (ms) => ((ms - start) / (end - start)) * (box.width - 60);
    const room = (s, until) => pixel(Math.min(until, end)) - pixel(Math.max(s.x0, start)) > 12 + 5.5 * s.label.text.length;
    const named = [...this.plots.values()].find((p) => p.named); // the decisions are named once, in the first of them
    const marks = this.shapes.filter((s) => s.name.startsWith("mark:") && s.label.text).sort((a, b) => a.x0 - b.x0);
    const after = (s) => marks[marks.indexOf(s) + 1]?.x0 ?? end; // a mark is named only where the next one leaves room
    const shown = this.shapes.filter((s) => s.x1 >= start && s.x0 <= end);
    const common = shown.map((s) => {
      const band = s.name.startsWith("band:");
      const labelled = plot.named && (band ? room(s, s.x1) : s.label.text && plot === named && room(s, after(s)));
      const { hover, ...clipped } = { ...s, x0: Math.max(s.x0, start), x1: Math.min(s.x1, end) };
      return labelled ? clipped : { ...clipped, label: { text: "" } };
    });
    const empty = !data.some((t) => t.y.some((v) => v !== null && v !== undefined));
    const touch = matchMedia("(pointer: coarse)").matches;
    const full = {
      ...layout,
      autosize: false,
      width: Math.floor(box.width) || 300,
      height: Math.floor(box.height) || 230,
      dragmode: touch ? false : "zoom",
      uirevision: this.uirevision,
      // Without a point or a line a log axis would show decades of nothing.
      yaxis: empty && layout.yaxis.type === "log" && !layout.shapes.length ? { ...layout.yaxis, range: [0, 1], autorange: false } : layout.yaxis,
      xaxis: { ...layout.xaxis, range: [start, end], autorange: false, nticks: box.width < 420 ? 4 : 7 },
      shapes: [...layout.shapes, ...common],
      annotations: [...this.signs(shown, pixel, layout), ...(empty ? [{ name: "nothing", text: "no data", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { size: 13 } }] : [])],
      showlegend: false,
      margin: { ...layout.margin, t: 18 },
    };
    Plotly.react(plot.node, data.map((t) => ({ ...t, visible: !plot.hidden.has(t.uid === "poa_core" ? "poa_withheld" : t.uid) })), full, { displayModeBar: false, doubleClick: false, responsive: false });
    plot.reset.hidden = plot.name.hidden = this.zoom === null;
    if (!plot.drawn) this.listen(Plotly, plot);
    plot.drawn = true;
  }

  listen(Plotly, plot) {
    plot.node.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
      if (from === undefined || to === undefined) return;
      const ms = (v) => (typeof v === "number" ? v : Date.parse(`${String(v).replace(" ", "T")}Z`));
      this.zoom = [ms(from), ms(to)];
      this.uirevision += 1;
      this.draw(Plotly);
    });
    plot.node.on("plotly_doubleclick", () => this.unzoom());
    new ResizeObserver(() => { if (plot.drawn && this.window) this.draw(Plotly); }).observe(plot.node);
  }

  // The span on screen gets a name: Streamlit asks for it.
  mark() {
    this.setTriggerValue("span", (this.zoom ?? this.window).map(Math.round));
  }

  unzoom() {
    this.zoom = null;
    this.uirevision += 1;
    if (window.Plotly && this.window) this.draw(window.Plotly);
  }
}

export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  let view = views.get(parentElement);
  if (!view) views.set(parentElement, (view = new View(parentElement)));
  Object.assign(view, { setStateValue, setTriggerValue });
  view.configure(data);
  return () => { view.stop(); views.delete(parentElement); };
}
