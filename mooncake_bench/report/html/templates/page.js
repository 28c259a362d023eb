"use strict";
(() => {
  const root = document.documentElement;
  const figures = new Map(JSON.parse(document.getElementById("numbers").textContent).map((each) => [each.id, each]));
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  root.classList.add("ready");

  // ---- light and dark

  const theme = document.getElementById("theme");
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ?? (wanted.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  wanted.addEventListener("change", name);
  name();

  // ---- tables sorted by a click

  for (const button of all(".sort")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const order = head.ariaSort === "descending" ? "ascending" : "descending";
      for (const other of head.parentNode.cells) other.ariaSort = null;
      head.ariaSort = order;
      const key = (row) => row.cells[column].dataset.number;
      const sign = order === "ascending" ? 1 : -1;
      body.append(...[...body.rows].sort((a, b) => {
        const [left, right] = [key(a), key(b)];
        if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
        return sign * (Number(left) - Number(right));
      }));
    });
  }

  // ---- downloads

  const formula = /^[=+\-@]/;
  const plain = /^[-+]?[\d.,]+(e[-+]?\d+)?( ?[%×])?$/;
  const field = (value) => {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value !== "number" && formula.test(text) && !plain.test(text)) text = `'${text}`;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const save = (name, rows) => {
    const text = rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const figureRows = ({ panels }) => [["panel", "series", "x", "y", "low", "high"], ...panels.flatMap((panel) => [
    ...panel.series.flatMap((each) => each.x.map((x, i) =>
      [panel.title, each.label, panel.x.categories?.[x] ?? x, each.y[i], each.low?.[i], each.high?.[i]])),
    ...(panel.heat?.rows ?? []).flatMap((row, i) =>
      panel.heat.values[i].map((value, j) => [panel.title, row, panel.heat.x[j], value, null, null])),
  ])];
  for (const button of all("[data-figure]")) {
    const figure = figures.get(button.dataset.figure);
    button.addEventListener("click", () => save(figure.name, figureRows(figure)));
  }
  for (const button of all("[data-table]")) {
    const table = document.querySelector(`#${CSS.escape(`table-${button.dataset.table}`)} table`);
    button.addEventListener("click", () =>
      save(button.dataset.table, [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent))));
  }

  // ---- legends that hide a series

  for (const button of all(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", shown);
      for (const group of all(`.panels .series[data-key="${button.dataset.key}"]`, button.closest("figure"))) {
        group.classList.toggle("off", !shown);
      }
    });
  }

  // ---- what lies under the pointer

  const readout = document.getElementById("readout");
  const number = (value, digits = 6) =>
    value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: digits });
  const inverse = ({ low, high, start, end, log }, pixel) => {
    const share = (pixel - start) / (end - start);
    return log ? low * (high / low) ** share : low + share * (high - low);
  };
  const pixel = ({ low, high, start, end, log }, value) =>
    start + (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)) * (end - start);
  const nearest = ({ x, shape }, at) => {
    let low = 0, high = x.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (x[middle] <= at) low = middle; else high = middle - 1; }
    const next = low + 1;
    return shape !== "step" && next < x.length && Math.abs(x[next] - at) < Math.abs(x[low] - at) ? next : low;
  };
  const line = (text, strong) => {
    const made = document.createElement(strong ? "b" : "div");
    made.textContent = text;
    return made;
  };
  const near = (panel, { x, shape, key }, at, hidden) => x.length > 0 && !hidden.has(String(key))
    && (shape !== "marks" || Math.abs(x[nearest({ x }, at)] - at) < (panel.x.high - panel.x.low) / 100);
  const seriesLines = (panel, at, hidden) => panel.series.filter((each) => near(panel, each, at, hidden)).map((each) => {
    const i = nearest(each, at);
    const where = panel.x.categories || each.shape !== "points" ? "" : ` at ${number(each.x[i])}`;
    const range = each.low && each.low[i] !== null && each.high?.[i] !== null ? ` (${number(each.low[i])} to ${number(each.high[i])})` : "";
    return line(`${each.label}: ${number(each.y[i])}${range}${where}`);
  });
  const heatLines = ({ heat, y }, at, top) => {
    const row = Math.floor(inverse(y, top));
    const column = heat.x.findIndex((edge, j) => at >= edge && at < heat.x[j + 1]);
    if (!(row in heat.rows) || column < 0) return [];
    return [line(`${heat.rows[row]}: ${number(heat.values[row][column])}`), line(heat.label)];
  };
  const show = (svg, panel, event) => {
    const box = svg.getBoundingClientRect();
    const scale = 480 / box.width;
    const [left, top] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    if (left < panel.x.start || left > panel.x.end) return hide(svg);
    const at = inverse(panel.x, left);
    const hidden = new Set(all('.legend button[aria-pressed="false"]', svg.closest("figure")).map((each) => each.dataset.key));
    const lines = panel.heat ? heatLines(panel, at, top) : seriesLines(panel, at, hidden);
    if (!lines.length) return hide(svg);
    const head = panel.x.categories ? panel.x.categories[Math.round(at)] : `${panel.x.label}: ${number(at, 4)}`;
    readout.replaceChildren(line(head, true), ...lines);
    readout.hidden = false;
    const [width, height] = [readout.offsetWidth, readout.offsetHeight];
    readout.style.left = `${Math.max(4, event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14)}px`;
    readout.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
    let cursor = svg.querySelector(".cursor");
    if (!cursor) {
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
      cursor.setAttribute("class", "cursor");
      svg.append(cursor);
    }
    const drawn = panel.x.categories ? pixel(panel.x, Math.round(at)) : left;
    cursor.setAttribute("d", panel.heat ? "" : `M${drawn} ${panel.y.end}V${panel.y.start}`);
  };
  const hide = (svg) => { readout.hidden = true; svg.querySelector(".cursor")?.remove(); };
  for (const [id, figure] of figures) {
    all(".panel > svg", document.getElementById(id)).forEach((svg, i) => {
      svg.addEventListener("pointermove", (event) => show(svg, figure.panels[i], event));
      svg.addEventListener("pointerdown", (event) => show(svg, figure.panels[i], event));
      svg.addEventListener("pointerleave", () => hide(svg));
    });
  }

  // ---- paper shows what is folded away

  let opened = [];
  addEventListener("beforeprint", () => { opened = all("details:not([open])"); for (const each of opened) each.open = true; });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
