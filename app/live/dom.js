// What every component of ours begins with: its mounted views, a node whose text is text, and the time of day in UTC. Python puts this before each script.

const views = new WeakMap();

function make(tag, className, parent, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

