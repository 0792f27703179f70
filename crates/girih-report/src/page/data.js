// Data: what stands in the page, inflated and taken apart. Columns of integers become typed arrays;
// column.rs says how they are written.

const NEVER = 0xffffffff;

/** Reads integers of seven bits a byte. */
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  int() {
    const { bytes } = this;
    let byte = bytes[this.at++];
    if (byte < 0x80) return byte;
    let value = byte & 0x7f;
    let scale = 128;
    do {
      byte = bytes[this.at++];
      value += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte >= 0x80);
    return value;
  }

  signed() {
    const value = this.int();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** The bytes of a section; null if the page has none of that name. */
async function section(name) {
  const element = document.getElementById(`data-${name}`);
  if (!element) return null;
  const packed = fromBase64(element.textContent);
  element.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function jsonSection(name) {
  const bytes = await section(name);
  return bytes && JSON.parse(new TextDecoder().decode(bytes));
}

/** Bytes that a block of so many is granted. */
function grantedBytes(size) {
  return Math.max(1, Math.ceil(size / 512)) * 512;
}

function readSeries(bytes) {
  const reader = new Reader(bytes);
  const events = reader.int();
  const width = reader.int();
  const count = Math.ceil(events / width);
  const band = () => {
    const low = new Float64Array(count);
    const high = new Float64Array(count);
    let last = 0;
    for (let i = 0; i < count; i++) low[i] = last += reader.signed();
    for (let i = 0; i < count; i++) high[i] = low[i] + reader.int();
    return { low, high };
  };
  const [requested, active, reserved] = [band(), band(), band()];
  const times = new Float64Array(count);
  let last = 0;
  for (let i = 0; i < count; i++) times[i] = last += reader.int();
  return { events, width, count, requested, active, reserved, times };
}

function readLanes(reader) {
  const lanes = [];
  let offset = 0;
  for (let left = reader.int(); left > 0; left--) {
    const high = reader.int();
    const address = (BigInt(high) << 32n) + BigInt(reader.int());
    const size = reader.int();
    lanes.push({ address, size, offset });
    offset += size;
  }
  return { list: lanes, bytes: offset };
}

function readRuns(reader) {
  const count = reader.int();
  const birth = new Uint32Array(count);
  const death = new Uint32Array(count);
  const offset = new Float64Array(count);
  const size = new Float64Array(count);
  const stream = new Uint16Array(count);
  const pool = new Uint16Array(count);
  const flags = new Uint8Array(count);
  let last = 0;
  for (let i = 0; i < count; i++) birth[i] = last += reader.int();
  for (let i = 0; i < count; i++) {
    const lived = reader.int();
    death[i] = lived === 0 ? NEVER : birth[i] + lived - 1;
  }
  // Each is told from where the one before ends; its size comes later.
  const changes = new Float64Array(count);
  for (let i = 0; i < count; i++) changes[i] = reader.signed();
  for (let i = 0; i < count; i++) {
    size[i] = reader.int();
    stream[i] = reader.int();
    pool[i] = reader.int();
    flags[i] = reader.int();
  }
  last = 0;
  for (let i = 0; i < count; i++) {
    offset[i] = last + changes[i];
    last = offset[i] + size[i];
  }
  return { count, birth, death, offset, size, stream, pool, flags };
}

function readBlocks(bytes) {
  const reader = new Reader(bytes);
  const slots = readSlots(reader);
  const count = reader.int();
  const older = reader.int();
  const slot = new Uint32Array(count);
  const follower = new Int32Array(slots.count).fill(-1);
  let last = -1;
  let fresh = 0;
  for (let i = 0; i < count; i++) {
    const code = reader.int();
    const guess = last >= 0 && follower[last] >= 0 ? follower[last] : fresh;
    const is = code === 0 ? guess : code === 1 ? fresh : code - 2;
    if (is === fresh) fresh++;
    if (last >= 0) follower[last] = is;
    slot[i] = last = is;
  }
  const birth = new Uint32Array(count);
  const gap = new Float64Array(slots.count).fill(1);
  let at = 0;
  for (let i = 0; i < count; i++) birth[i] = at += gap[slot[i]] += reader.signed();
  const death = new Uint32Array(count);
  const duration = new Float64Array(slots.count);
  for (let i = 0; i < count; i++) {
    const lived = (duration[slot[i]] += reader.signed());
    death[i] = lived === 0 ? NEVER : birth[i] + lived - 1;
  }
  const freed = new Map();
  let index = 0;
  for (let left = reader.int(); left > 0; left--) {
    index += reader.int();
    freed.set(index, birth[index] + reader.int());
  }
  return { count, older, slot, birth, death, freed, slots };
}

function readSlots(reader) {
  const count = reader.int();
  const offset = new Float64Array(count);
  const size = new Float64Array(count);
  const granted = new Float64Array(count);
  const stack = new Uint32Array(count);
  const stream = new Uint16Array(count);
  const pool = new Uint16Array(count);
  const category = new Uint8Array(count);
  for (let i = 0; i < count; i++) offset[i] = reader.signed();
  for (let i = 0; i < count; i++) {
    size[i] = reader.int();
    granted[i] = grantedBytes(size[i]);
  }
  let end = 0;
  for (let i = 0; i < count; i++) {
    offset[i] += end;
    end = offset[i] + granted[i];
  }
  for (let i = 0; i < count; i++) stack[i] = reader.int();
  for (let i = 0; i < count; i++) {
    stream[i] = reader.int();
    pool[i] = reader.int();
    category[i] = reader.int();
  }
  return { count, offset, size, granted, stack, stream, pool, category };
}

function readMarks(bytes) {
  const reader = new Reader(bytes);
  const steps = new Uint32Array(reader.int());
  let last = 0;
  for (let i = 0; i < steps.length; i++) steps[i] = last += reader.int();
  const count = reader.int();
  const start = new Uint32Array(count);
  const kind = new Uint8Array(count);
  const microbatch = new Uint32Array(count);
  last = 0;
  for (let i = 0; i < count; i++) {
    start[i] = last += reader.int();
    kind[i] = reader.int();
    microbatch[i] = reader.int();
  }
  const refused = [];
  for (let left = reader.int(); left > 0; left--) {
    refused.push({ event: reader.int(), bytes: reader.int() });
  }
  return { steps, phases: { start, kind, microbatch }, refused };
}

function readCurves(bytes) {
  const reader = new Reader(bytes);
  const curves = [];
  for (let left = reader.int(); left > 0; left--) {
    const count = reader.int();
    const event = new Uint32Array(count);
    const value = new Float64Array(count);
    let [at, now] = [0, 0];
    for (let i = 0; i < count; i++) {
      event[i] = at += reader.int();
      value[i] = now += reader.signed();
    }
    curves.push({ event, value });
  }
  return curves;
}

/** Where another allocator has the blocks: offsets on lanes of its own, -1 for one it has not. */
function readLayout(bytes, blocks) {
  const reader = new Reader(bytes);
  const lanes = readLanes(reader);
  const runs = readRuns(reader);
  const offset = new Float64Array(blocks.count);
  const last = new Float64Array(blocks.slots.count);
  for (let i = 0; i < blocks.count; i++) {
    offset[i] = (last[blocks.slot[i]] += reader.signed()) - 1;
  }
  return { lanes, runs, offset };
}

/** Everything in the page. */
async function readAll() {
  const [head, series, held, blockBytes, marks, curves, stacks, layout, copies] = await Promise.all(
    [
      jsonSection("head"),
      section("series"),
      section("held"),
      section("blocks"),
      section("marks"),
      section("curves"),
      jsonSection("stacks"),
      section("layout"),
      jsonSection("copies"),
    ],
  );
  const reader = new Reader(held);
  const lanes = readLanes(reader);
  const runs = readRuns(reader);
  const blocks = readBlocks(blockBytes);
  return {
    head,
    figures: head.figures,
    series: readSeries(series),
    lanes,
    runs,
    blocks,
    marks: readMarks(marks),
    curves: readCurves(curves),
    stacks,
    layout: layout && readLayout(layout, blocks),
    copies,
  };
}
