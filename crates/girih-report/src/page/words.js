// Words: numbers as people read them, and elements whose text is text, whatever it says.

/** Bytes with a binary unit and three digits, as the command prints them. */
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  if (unit === 0) return `${bytes} B`;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

function countText(count) {
  return Math.round(count)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

function timeText(us) {
  if (us < 1000) return `${us.toFixed(0)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;
  return `${(us / 1e6).toFixed(us < 1e7 ? 3 : 2)} s`;
}

/** A share as percent with two digits, never rounded up to 100. */
function percentText(share) {
  const percent = share * 100;
  return `${(percent < 100 ? Math.floor(percent * 100) / 100 : percent).toFixed(2)} %`;
}

function find(id) {
  return document.getElementById(id);
}

/** An element with properties, and children that are elements or text. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.includes("-") || name === "role" || name === "scope")
      element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** A key of a legend: a square of a color of the style. */
function key(color) {
  const square = make("span", { class: "key" });
  square.style.background = `var(--${color})`;
  return square;
}

/** Fills a table. A column is a heading, or a heading and "n" for numbers, "place" for code. */
function fillTable(table, columns, rows) {
  const kinds = columns.map((column) => (Array.isArray(column) ? column[1] : ""));
  const names = columns.map((column) => (Array.isArray(column) ? column[0] : column));
  const head = make("tr");
  names.forEach((name, i) => head.append(make("th", { class: kinds[i], scope: "col" }, name)));
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr");
    row.forEach((cell, i) => line.append(make("td", { class: kinds[i] }, cell)));
    body.append(line);
  }
  table.replaceChildren(make("thead", {}, head), body);
}

const styles = {
  known: new Map(),
  /** A color of the style, in the theme that is on. */
  color(name) {
    if (!this.known.has(name)) {
      const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
      this.known.set(name, value.trim());
    }
    return this.known.get(name);
  },
  /** The same as three numbers. */
  rgb(name) {
    const hex = this.color(name).slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  },
  forget() {
    this.known.clear();
  },
};

/** A canvas as large as it is shown, in pixels of the screen; drawn in those of the page. */
function fitted(canvas) {
  const scale = Math.min(3, window.devicePixelRatio || 1);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

const FONT =
  '11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** Round steps for an axis of bytes, at most so many. */
function byteSteps(most, lines) {
  let step = 1;
  while (most / step > lines) step *= 2;
  const steps = [];
  for (let at = step; at <= most; at += step) steps.push(at);
  return steps;
}

/** Round steps for an axis of counts from one to another. */
function countSteps(from, to, lines) {
  const rough = Math.max(1, (to - from) / lines);
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(
    1,
    [1, 2, 5, 10].map((of) => of * ten).find((it) => it >= rough),
  );
  const steps = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) steps.push(at);
  return steps;
}
