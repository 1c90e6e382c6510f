// Tables within .sortable are sorted by the column whose head is clicked.
addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".sortable table")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        // An interval is sorted by the number before it; what is not known comes last.
        const value = row => {
          const text = row.cells[at].textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
          return /^not known/.test(text) ? null : Number.isNaN(number) ? text : number;
        };
        const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b :
          String(a).localeCompare(String(b));
        const order = [...body.rows].map(row => [value(row), row]);
        order.sort(([a], [b]) => (a === null) - (b === null) ||
          (a === null ? 0 : (down ? -1 : 1) * compare(a, b)));
        body.append(...order.map(([, row]) => row));
      });
    });
  }
});
