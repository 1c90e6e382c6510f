// The script of the page; no network is needed.
const SAVE_AS_SVG = {name: "Download plot as SVG", icon: Plotly.Icons.disk,
  click: plot => Plotly.downloadImage(plot, {format: "svg", filename: plot.id})};
const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
const told = id => JSON.parse(document.getElementById(id + "-data").textContent);
const drawn = new Set();
const ROWS_AT_ONCE = 200;

// Plotly measures what it draws into, so a figure is drawn when its fold opens.
function show(id) {
  const plot = document.getElementById(id);
  if (drawn.has(id) || plot.closest("details:not([open])")) return;
  drawn.add(id);
  const figure = told(id);
  figure.layout.font = {...figure.layout.font, color: ink()};
  const small = plot.closest(".small") !== null;
  // The legend has as many curves in a line as the longest name leaves room for.
  const names = figure.data.filter(one => one.showlegend !== false).map(one => one.name ?? "");
  const across = Math.floor(plot.clientWidth / (50 + 8 * Math.max(...names.map(name => name.length))));
  const lines = names.length / Math.max(across, 1);
  if (!small) figure.layout.height += Math.max(20 * Math.ceil(lines) - 60, 0);
  plot.style.height = `${figure.layout.height}px`;
  Plotly.newPlot(plot, figure.data, figure.layout, {displaylogo: false, responsive: true,
    displayModeBar: small || !matchMedia("(hover: hover)").matches ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendDataToCloud"],
    modeBarButtonsToAdd: [SAVE_AS_SVG], toImageButtonOptions: {scale: 2}});
}

function fill(table) {
  if (drawn.has(table.id) || table.closest("details:not([open])")) return;
  drawn.add(table.id);
  const columns = told(table.id), heads = [...table.tHead.rows[0].cells];
  const more = document.getElementById(table.id + "-more"), body = table.tBodies[0];
  let order = columns[0].map((_, row) => row), shown = ROWS_AT_ONCE;
  const render = () => {
    body.replaceChildren(...order.slice(0, shown).map(row => {
      const line = document.createElement("tr");
      columns.forEach((column, at) => {
        const cell = line.insertCell();
        cell.textContent = column[row] ?? "";
        cell.className = heads[at].className;
      });
      return line;
    }));
    more.hidden = shown >= order.length;
  };
  heads.forEach((head, at) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending", column = columns[at];
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b :
      String(a).localeCompare(String(b));
    // What is missing comes last, whichever way.
    order.sort((a, b) => (column[a] === null) - (column[b] === null) ||
      (column[a] === null ? 0 : (down ? -1 : 1) * compare(column[a], column[b])));
    render();
  }));
  more.addEventListener("click", () => { shown += ROWS_AT_ONCE; render(); });
  render();
}

const unfold = root => {
  for (const plot of root.querySelectorAll(".plot")) show(plot.id);
  for (const table of root.querySelectorAll("table.trials")) fill(table);
};
// A link into a fold opens it, and whatever it lies in.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target?.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("DOMContentLoaded", reveal);
document.addEventListener("click", event => {
  const link = event.target.closest?.("a[href^='#']");
  if (link && link.hash === location.hash) reveal();
});
document.addEventListener("toggle", event => {
  if (event.target.open) unfold(event.target);
}, true);

const recolour = () => {
  for (const plot of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(plot, {"font.color": ink()});
};
let closed = [];
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const fold of closed) fold.open = true;
  unfold(document);
  recolour();
});
addEventListener("afterprint", () => {
  for (const fold of closed) fold.open = false;
  recolour();
});

// A page that reloads itself leaves open what was open.
if (document.querySelector("meta[http-equiv=refresh]")) addEventListener("DOMContentLoaded", () => {
  const folds = document.querySelectorAll("details[id]"), key = "open " + location.pathname;
  for (const id of JSON.parse(sessionStorage.getItem(key) ?? "[]")) {
    const fold = document.getElementById(id);
    if (fold) fold.open = true;
  }
  addEventListener("pagehide", () => sessionStorage.setItem(key, JSON.stringify(
    [...folds].filter(fold => fold.open).map(fold => fold.id))));
});
