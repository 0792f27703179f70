// Who has it: what is alive at the instant, by what it is for, by stack as a flame graph that hangs
// from the top, and by line.

const LEVEL = 20;
const DEPTH_SHOWN = 48;
const LARGEST = 12;

class Flame {
  constructor(page) {
    this.page = page;
    this.zoomed = [];
    find("all-frames").addEventListener("change", () => page.redraw());
    find("flame").addEventListener("keydown", (event) => this.move(event));
    find("flame-out").addEventListener("click", () => {
      this.zoomed = [];
      page.redraw();
    });
  }

  draw() {
    const { page } = this;
    const { data, event, lives } = page;
    const { slots, slot } = data.blocks;
    const kinds = data.head.categories.map(() => 0);
    const root = { name: "all", bytes: 0, count: 0, kind: -1, children: new Map() };
    const lines = new Map();
    const hasStacks = data.stacks.stacks.length > 0;
    lives.alive(event, (index) => {
      const is = slot[index];
      const bytes = slots.size[is];
      const kind = slots.category[is];
      kinds[kind] += bytes;
      const line = this.line(is, index, hasStacks);
      this.add(root, kind, slots.stack[is], bytes, hasStacks ? "" : line);
      const group = lines.get(line) || { bytes: 0, count: 0, largest: 0, most: -1, index };
      group.bytes += bytes;
      group.count++;
      if (bytes > group.largest) [group.largest, group.index, group.kind] = [bytes, index, kind];
      lines.set(line, group);
    });
    const total = page.sums.at(event)[0][1];
    this.leftOut(root, total);
    find("who-about").textContent =
      `${page.when(event)}: ${bytesText(total)} requested by live blocks` +
      (hasStacks
        ? ", by stack from the outermost call down."
        : ". No call stacks were recorded: blocks of one size are together.");
    this.drawShares(kinds, root.bytes);
    this.drawTree(root);
    this.drawLines(lines, root.bytes, hasStacks);
  }

  /** The line that asked for a block; without stacks, blocks of one size are together. */
  line(is, index, hasStacks) {
    const { data } = this.page;
    const { stack, size, category } = data.blocks.slots;
    if (stack[is] > 0) return data.stacks.lines[stack[is] - 1];
    if (index < data.blocks.older) return "before the recording began";
    return hasStacks
      ? "backward (no Python frame)"
      : `${data.head.categories[category[is]]} of ${bytesText(size[is])}`;
  }

  /** Adds a block to the tree: its category, then its frames from the outermost. */
  add(root, kind, stack, bytes, instead) {
    const { categories } = this.page.data.head;
    root.bytes += bytes;
    root.count++;
    let node = this.child(root, categories[kind], kind, bytes);
    const frames = stack > 0 ? this.frames(stack) : instead ? [instead] : [];
    for (const frame of frames) node = this.child(node, frame, kind, bytes);
  }

  child(node, name, kind, bytes) {
    let child = node.children.get(name);
    if (!child) {
      child = { name, bytes: 0, count: 0, kind, children: new Map() };
      node.children.set(name, child);
    }
    child.bytes += bytes;
    child.count++;
    return child;
  }

  /** The frames of a stack from the outermost: Python's, where it has any and not all are wanted. */
  frames(stack) {
    const wantsAll = find("all-frames").checked;
    this.known ??= new Map();
    const name = wantsAll ? stack : -stack;
    if (!this.known.has(name)) {
      const { stacks } = this.page.data;
      const all = stacks.stacks[stack - 1].map((frame) => stacks.frames[frame]).reverse();
      const python = all.filter((frame) => /\.py:\d+ |^<.*>:\d+ /.test(frame));
      this.known.set(name, wantsAll || python.length === 0 ? all : python);
    }
    return this.known.get(name);
  }

  leftOut(root, total) {
    const missing = total - root.bytes;
    if (this.page.data.head.left_out > 0 && missing > 0) {
      root.bytes += missing;
      root.children.set("left out of this page", {
        name: "left out of this page",
        bytes: missing,
        count: 0,
        kind: -1,
        children: new Map(),
      });
    }
  }

  drawShares(kinds, total) {
    const { categories } = this.page.data.head;
    const order = kinds
      .map((_, kind) => kind)
      .filter((kind) => kinds[kind] > 0)
      .sort((a, b) => kinds[b] - kinds[a]);
    const text = (kind) => `${categories[kind]} ${bytesText(kinds[kind])}`;
    const parts = order.map((kind) => {
      const part = make("span", { title: text(kind) }, text(kind));
      part.style.width = `${(kinds[kind] / Math.max(1, total)) * 100}%`;
      part.style.background = `var(--c${kind})`;
      if (kinds[kind] / Math.max(1, total) < 0.06) part.textContent = "";
      return part;
    });
    find("shares").replaceChildren(...parts);
    find("shares").setAttribute("aria-label", order.map(text).join(", "));
    this.kinds = kinds;
  }

  drawTree(root) {
    const box = find("flame");
    let top = root;
    this.zoomed = this.zoomed.filter((name) => (top = top && top.children.get(name)));
    top = this.zoomed.reduce((node, name) => node.children.get(name), root);
    find("flame-out").hidden = this.zoomed.length === 0;
    const width = box.clientWidth;
    const made = [];
    let depth = 0;
    const query = this.page.highlighted;
    const place = (node, left, level, path) => {
      const wide = (node.bytes / Math.max(1, top.bytes)) * width;
      if (wide < 2 || level > DEPTH_SHOWN) return;
      depth = Math.max(depth, level + 1);
      const share = percentText(node.bytes / Math.max(1, root.bytes));
      const text = `${node.name}: ${bytesText(node.bytes)}, ${share}`;
      const isDim = query && !node.name.toLowerCase().includes(query);
      const button = make("button", {
        type: "button",
        title: text,
        "aria-label": text,
        tabIndex: made.length === 0 ? 0 : -1,
        class: node.kind < 0 ? "root" : isDim ? "dim" : "",
      });
      button.textContent =
        wide < 28 ? "" : level === 0 && node === root ? text : shortFrame(node.name);
      button.style.left = `${(left / width) * 100}%`;
      button.style.width = `calc(${(wide / width) * 100}% - 1px)`;
      button.style.top = `${level * LEVEL}px`;
      // Padding alone would make a narrow one wider than its share.
      if (wide < 28) button.style.padding = "0";
      if (node.kind >= 0) {
        const color = `var(--c${node.kind}) ${100 - (level % 2) * 10}%`;
        button.style.background = `color-mix(in srgb, ${color}, var(--paper))`;
      }
      button.addEventListener("click", () => {
        this.zoomed = path;
        this.page.redraw();
      });
      Object.assign(button, { level, left, wide });
      made.push(button);
      let at = left;
      for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
        place(child, at, level + 1, [...path, child.name]);
        at += (child.bytes / Math.max(1, top.bytes)) * width;
      }
    };
    place(top, 0, 0, this.zoomed);
    const hadFocus = box.contains(document.activeElement);
    box.replaceChildren(...made);
    if (hadFocus) made[0]?.focus();
    box.style.height = `${depth * LEVEL}px`;
  }

  /** Arrows: to what is beside, to what is below, and to what it is a part of. */
  move(event) {
    const from = event.target;
    const all = [...find("flame").children];
    const beside = all.filter((it) => it.level === from.level);
    const at = beside.indexOf(from);
    const holds = (outer, inner) =>
      outer.left <= inner.left + 0.01 && inner.left < outer.left + outer.wide;
    const to = {
      ArrowRight: () => beside[at + 1],
      ArrowLeft: () => beside[at - 1],
      ArrowDown: () => all.find((it) => it.level === from.level + 1 && holds(from, it)),
      ArrowUp: () => all.find((it) => it.level === from.level - 1 && holds(it, from)),
    }[event.key];
    if (!to) return;
    to()?.focus();
    event.preventDefault();
    event.stopPropagation();
  }

  drawLines(lines, total, hasStacks) {
    const { page } = this;
    const sorted = [...lines].sort((a, b) => b[1].bytes - a[1].bytes || (a[0] < b[0] ? -1 : 1));
    const rows = sorted.slice(0, LARGEST).map(([line, group]) => {
      const link = make(
        "button",
        { type: "button", class: "link", title: "Show its largest block" },
        line,
      );
      link.addEventListener("click", () => page.show(group.index));
      return [
        link,
        bytesText(group.bytes),
        percentText(group.bytes / Math.max(1, total)),
        countText(group.count),
        bytesText(group.largest),
        page.data.head.categories[group.kind] ?? "",
      ];
    });
    fillTable(
      find("largest"),
      [
        [hasStacks ? "line" : "blocks of one size", "place"],
        ["alive", "n"],
        ["share", "n"],
        ["blocks", "n"],
        ["largest", "n"],
        "for",
      ],
      rows,
    );
    this.lines = sorted;
  }
}

/** A frame without the folders of its file. */
function shortFrame(name) {
  const parts = /^(?:.*[\\/])?([^\\/]*:\d+) (.*)$/.exec(name);
  return parts ? `${parts[2]} ${parts[1]}` : name;
}
