// Draws the report's charts from the data beside it, in the colours the reader's system asks for. Nothing here makes HTML of text.
const told = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

function trace(panel, shape) {
  const points = told.points[panel][shape.uid];
  const drawn = { ...shape, x: told.xs[points.x], y: points.y };
  if (points.text) drawn.text = points.text;
  if (points.array) drawn.error_y = { ...shape.error_y, array: points.array, arrayminus: points.arrayminus };
  return drawn;
}

function draw() {
  const { figures, shapes } = told.themes[dark.matches ? "dark" : "light"];
  for (const node of document.querySelectorAll("[data-panel]")) {
    const panel = node.dataset.panel, figure = figures[panel];
    const behind = told.named.includes(panel) ? shapes : shapes.map(({ label, ...shape }) => shape);
    const layout = { ...figure.layout, shapes: [...behind, ...(figure.layout.shapes || [])], height: 300, autosize: true };
    layout.margin = { ...layout.margin, t: 52 };
    layout.legend = { ...layout.legend, y: 1.14 };
    layout.xaxis = { ...layout.xaxis, range: told.range };
    const data = figure.data.map((shape) => trace(panel, shape));
    Plotly.react(node, data, layout, { displayModeBar: false, responsive: true });
  }
}

dark.addEventListener("change", draw);
draw();
