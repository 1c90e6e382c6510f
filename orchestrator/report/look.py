"""The style and the script of the page, in CSS and JavaScript; no network is needed."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --quiet: #555; --line: #dcdfe3;
        --note: #7a3b00; --link: #0059a0; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e8e8e8; --quiet: #aab0b6; --line: #343a40; --note: #ffb877;
          --link: #7cc4ff; --card: #1c2126; }
}
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --quiet: #333;
                       --line: #bbb; --note: #5a2b00; --link: #00427a; --card: #fff; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 80rem; margin: 0 auto; padding: 1.1rem clamp(1rem, 2.5vw, 2.2rem) 3rem; }
h1 { font-size: 1.55rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h1 small { font-size: 1rem; font-weight: 400; color: var(--quiet); margin-left: .5rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; overflow-wrap: anywhere; }
h4 { font-size: 1rem; margin: 1rem 0 .3rem; }
a { color: var(--link); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
          margin: 0; white-space: nowrap; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; }
ul { padding-left: 1.2rem; margin: .5rem 0; } li { margin: .3rem 0; overflow-wrap: anywhere; }
p.lead, figcaption, caption { color: var(--quiet); max-width: 62rem; }
p.lead { font-size: .92rem; }
.notice { border-left: 3px solid var(--note); padding: .1rem .8rem; margin: .7rem 0;
          color: var(--note); font-size: .94rem; }
.says { list-style: none; padding: 0; margin: 0; }
.says li { margin: .12rem 0; padding-left: 1.15rem; position: relative; }
.says li::before { content: ""; position: absolute; left: 0; top: .5em; width: .6rem;
                   height: .6rem; border-radius: 50%; background: var(--curve, var(--line)); }
.first { margin-top: .6rem; }
.first figure { margin: 0; }
.first .cards { margin: 1.2rem 0 0; }
@media (min-width: 1100px) {
  .first.advised { display: grid; grid-template-columns: minmax(0, 1fr) 18.5rem; gap: 0 2rem; }
  .first .cards { grid-template-columns: 1fr; margin: 0; align-content: start; }
}
figure { margin: 1.4rem 0; break-inside: avoid; max-width: 64rem; }
figcaption { font-size: .9rem; line-height: 1.45; }
figcaption b { color: var(--ink); display: block; }
.wide { overflow-x: auto; } .wide .plot { min-width: 44rem; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 1.4rem; }
table { border-collapse: collapse; min-width: min(100%, 40rem);
        font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { white-space: normal; text-align: left; padding-bottom: .4rem; font-size: .9rem; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; font-weight: normal; }
thead th { border-bottom: 2px solid var(--quiet); font-weight: 600; vertical-align: bottom; }
thead th.told { white-space: normal; }
.text { text-align: left; }
td.wrap { white-space: normal; min-width: 11rem; color: var(--note); }
td.told { white-space: normal; min-width: 8rem; text-align: left; }
.sorted { max-height: 34rem; overflow: auto; }
.sorted thead th { position: sticky; top: 0; background: var(--paper); padding: 0; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0;
            padding: .35rem .5rem; cursor: pointer; white-space: nowrap; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
button.more { font: inherit; font-size: .92rem; margin: .6rem 0; padding: .25rem .8rem;
              color: var(--link); background: var(--card); border: 1px solid var(--line);
              border-radius: 6px; cursor: pointer; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr));
         gap: 0 1.4rem; }
@media (min-width: 700px) { .small.two { grid-template-columns: 1fr 1fr; } }
.small figure { min-width: 0; margin: .6rem 0; display: flex; flex-direction: column-reverse; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .7rem; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
             padding: .55rem 1rem .65rem; break-inside: avoid; }
.cards dt { font-size: .88rem; color: var(--quiet); font-weight: 600; }
.cards dd { margin: 0; font-size: .92rem; line-height: 1.45; overflow-wrap: anywhere; }
.cards b { font-size: 1.6rem; line-height: 1.25; }
.cards span { color: var(--quiet); }
details.fold { border-top: 1px solid var(--line); }
details.fold:last-of-type { border-bottom: 1px solid var(--line); }
.folds { margin-top: 1.6rem; }
details.fold > summary { padding: .6rem 0; cursor: pointer; list-style-position: outside;
                         margin-left: 1.1rem; }
details.fold > summary h3 { display: inline; font-size: 1.02rem; margin: 0 .5rem 0 0; }
details.fold > summary span { color: var(--quiet); font-size: .94rem; overflow-wrap: anywhere; }
details.fold[open] { padding-bottom: 1.4rem; }
summary:focus-visible, button:focus-visible, a:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--link); outline-offset: 2px; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
pre { overflow-x: auto; }
@media print {
  body { max-width: none; padding: 0; } main { zoom: .75; }
  nav, .modebar, button.more { display: none; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  h2, h3, h4, caption, summary { break-after: avoid; } tr { break-inside: avoid; }
  .scroll, .sorted, .wide { overflow: visible; max-height: none; } .wide .plot { min-width: 0; }
  th, td { white-space: normal; padding: .25rem .4rem; }
}
"""

SCRIPT = """
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
"""

KEEP_OPEN = """
// A page that reloads itself leaves open what was open.
addEventListener("DOMContentLoaded", () => {
  const folds = document.querySelectorAll("details[id]"), key = "open " + location.pathname;
  for (const id of JSON.parse(sessionStorage.getItem(key) ?? "[]")) {
    const fold = document.getElementById(id);
    if (fold) fold.open = true;
  }
  addEventListener("pagehide", () => sessionStorage.setItem(key, JSON.stringify(
    [...folds].filter(fold => fold.open).map(fold => fold.id))));
});
"""
