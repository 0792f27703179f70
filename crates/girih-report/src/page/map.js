// The map: addresses over time. What is held is a shade, what blocks have is the color of what they
// are for. It is painted in tiles of 256 columns, at a level of detail for each power of two of
// events in a column, and a tile once painted is kept: panning moves pictures.

const TILE = 256;
const TILES_KEPT = 160;

class MemoryMap {
  constructor(page) {
    this.page = page;
    this.canvas = find("map");
    this.tiles = new Map();
    this.rows = 0;
  }

  forget() {
    this.tiles.clear();
  }

  /** Draws what is in view. Paints tiles for at most `budget` milliseconds; true if some lack. */
  draw(budget) {
    const { pen, width, height } = fitted(this.canvas);
    const { view } = this.page;
    if (this.rows !== Math.round(height)) {
      this.rows = Math.round(height);
      this.forget();
    }
    const perPixel = (view.to - view.from) / width;
    const level = Math.max(0, Math.round(Math.log2(perPixel)));
    const span = TILE * 2 ** level;
    const began = performance.now();
    let isShort = false;
    pen.imageSmoothingEnabled = false;
    const first = Math.max(0, Math.floor(view.from / span));
    const last = Math.min(
      Math.ceil(this.page.data.series.events / span),
      Math.ceil(view.to / span),
    );
    for (let index = first; index < last; index++) {
      let tile = this.tiles.get(`${level}/${index}`);
      if (!tile && (performance.now() - began < budget || index === first))
        tile = this.paint(level, index);
      const x = (event) => ((event - view.from) / (view.to - view.from)) * width;
      if (tile) {
        pen.drawImage(tile, x(index * span), 0, x((index + 1) * span) - x(index * span), height);
      } else {
        isShort = true;
        this.drawCoarser(pen, level, index, x, height);
      }
    }
    const at = ((this.page.event + 0.5 - view.from) / (view.to - view.from)) * width;
    pen.fillStyle = styles.color("ink");
    if (at >= 0 && at <= width) pen.fillRect(Math.round(at), 0, 1, height);
    return isShort;
  }

  /** Draws the part of a coarser tile that stands where one lacks. */
  drawCoarser(pen, level, index, x, height) {
    const span = TILE * 2 ** level;
    for (let up = 1; up < 24; up++) {
      const tile = this.tiles.get(`${level + up}/${index >> up}`);
      if (!tile) continue;
      const wide = TILE / 2 ** up;
      const from = (index - ((index >> up) << up)) * wide;
      pen.drawImage(
        tile,
        from,
        0,
        wide,
        this.rows,
        x(index * span),
        0,
        x((index + 1) * span) - x(index * span),
        height,
      );
      return;
    }
  }

  paint(level, index) {
    const { rows } = this;
    const { data, lives, held } = this.page;
    const scale = 2 ** level;
    const from = index * TILE * scale;
    const to = from + TILE * scale;
    const kinds = data.head.categories.length;
    const wide = TILE + 1;
    // Of each kind, and of what is held, the change of coverage from column to column.
    const sheets = new Float32Array((kinds + 1) * rows * wide);
    const rowBytes = Math.max(1, data.lanes.bytes / rows);
    const cover = (sheet, offset, size, birth, death) => {
      const begin = Math.max(0, (birth - from) / scale);
      const end = Math.min(TILE, (death - from) / scale);
      if (end <= begin) return;
      const [left, right] = [Math.floor(begin), Math.floor(end)];
      const last = Math.min(rows - 1, Math.floor((offset + size - 1) / rowBytes));
      for (let row = Math.max(0, Math.floor(offset / rowBytes)); row <= last; row++) {
        const top = Math.max(offset, row * rowBytes);
        const bytes = Math.min(offset + size, (row + 1) * rowBytes) - top;
        const share = bytes / rowBytes;
        const at = (sheet * rows + row) * wide;
        if (left === right) {
          sheets[at + left] += share * (end - begin);
          sheets[at + left + 1] -= share * (end - begin);
          continue;
        }
        // The first and the last column are covered in part.
        sheets[at + left] += share * (left + 1 - begin);
        sheets[at + left + 1] += share * (begin - left);
        sheets[at + right] -= share * (1 - (end - right));
        if (right < TILE) sheets[at + right + 1] -= share * (end - right);
      }
    };
    const { slots, slot, birth, death } = data.blocks;
    lives.during(from, to - 1, (i) => {
      const is = slot[i];
      cover(slots.category[is], slots.offset[is], slots.granted[is], birth[i], death[i]);
    });
    const { runs } = data;
    held.during(from, to - 1, (i) => {
      cover(kinds, runs.offset[i], runs.size[i], runs.birth[i], runs.death[i]);
    });
    return this.keep(`${level}/${index}`, this.picture(sheets, kinds));
  }

  picture(sheets, kinds) {
    const { rows } = this;
    const wide = TILE + 1;
    const tile = document.createElement("canvas");
    [tile.width, tile.height] = [TILE, rows];
    const pen = tile.getContext("2d");
    const image = pen.createImageData(TILE, rows);
    const colors = this.page.data.head.categories.map((_, kind) => styles.rgb(`c${kind}`));
    const [paper, shade] = [styles.rgb("paper"), styles.rgb("held")];
    const now = new Float32Array(kinds + 1);
    for (let row = 0; row < rows; row++) {
      now.fill(0);
      for (let column = 0; column < TILE; column++) {
        let used = 0;
        for (let kind = 0; kind <= kinds; kind++) {
          now[kind] += sheets[(kind * rows + row) * wide + column];
          if (kind < kinds) used += Math.max(0, now[kind]);
        }
        // Rounding of many small shares may leave a little more than all.
        const fit = used > 1 ? 1 / used : 1;
        const idle = Math.max(0, Math.min(1, now[kinds]) - used * fit);
        const at = (row * TILE + column) * 4;
        for (let part = 0; part < 3; part++) {
          let value = shade[part] * idle + paper[part] * Math.max(0, 1 - idle - used * fit);
          for (let kind = 0; kind < kinds; kind++)
            value += colors[kind][part] * Math.max(0, now[kind]) * fit;
          image.data[at + part] = value;
        }
        image.data[at + 3] = 255;
      }
    }
    pen.putImageData(image, 0, 0);
    return tile;
  }

  keep(name, tile) {
    this.tiles.set(name, tile);
    // A map keeps the order in which things came: the oldest goes.
    if (this.tiles.size > TILES_KEPT) this.tiles.delete(this.tiles.keys().next().value);
    return tile;
  }
}
