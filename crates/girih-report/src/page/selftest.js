// The self-test: with #selftest the page adds its data up anew, and says on the page what it found
// and what went wrong, for a test that opens it.

const troubles = [];
window.addEventListener("error", (event) => troubles.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => troubles.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) =>
  troubles.push(`policy: ${event.violatedDirective}`),
);

function largest(array) {
  return array.reduce((most, value) => Math.max(most, value), 0);
}

/** What is alive after an event, by block. */
function aliveThen(page, event) {
  const { slots, slot } = page.data.blocks;
  const kinds = page.data.head.categories.map(() => 0);
  const sum = { requested: 0, active: 0, count: 0 };
  page.lives.alive(event, (i) => {
    sum.requested += slots.size[slot[i]];
    sum.active += slots.granted[slot[i]];
    sum.count++;
    kinds[slots.category[slot[i]]] += slots.size[slot[i]];
  });
  let held = 0;
  page.held.alive(event, (i) => (held += page.data.runs.size[i]));
  return { ...sum, held, kinds };
}

/** The same by looking at every block: what the pyramid finds must be that. */
function countedThen(page, event) {
  const { birth, death } = page.data.blocks;
  let count = 0;
  for (let i = 0; i < birth.length; i++) count += birth[i] <= event && event < death[i];
  return count;
}

function selftest(page) {
  const { data } = page;
  const { figures } = data;
  page.setEvent(figures.live_peak_event, true);
  page.draw();
  const at = aliveThen(page, figures.live_peak_event);
  const [requested] = page.sums.at(figures.live_peak_event);
  const sampled = [0, 0.25, 0.5, 0.75, 1].map((share) =>
    Math.floor(share * (data.series.events - 1)),
  );
  const result = {
    troubles,
    events: data.series.events,
    live_peak: largest(data.series.requested.high),
    live_at_peak_event: requested[1],
    live_by_blocks: at.requested,
    active_peak: largest(data.series.active.high),
    reserved_peak: largest(data.series.reserved.high),
    held_at_peak: at.held,
    categories: Object.fromEntries(
      data.head.categories.map((name, kind) => [name, at.kinds[kind]]),
    ),
    steps: data.marks.steps.length,
    refused: data.marks.refused.length,
    blocks: data.blocks.count,
    left_out: data.head.left_out,
    allocators: figures.allocators.map((of, i) => ({
      name: of.name,
      reserved_peak: largest(data.curves[i].value),
    })),
    alive: sampled.map((event) => [aliveThen(page, event).count, countedThen(page, event)]),
    lines: page.flame.lines.slice(0, 20).map(([line, group]) => [line, group.bytes, group.count]),
    tiles: [...document.querySelectorAll("#tiles dd:nth-of-type(1)")].map((it) => it.textContent),
    layout_bytes: data.layout ? largest(data.layout.offset) : null,
    open_ms: page.openMs,
    elements: document.querySelectorAll("*").length,
    scripts: document.querySelectorAll("script").length,
    pictures: document.querySelectorAll("img, iframe, object, svg").length,
    name: find("name").textContent,
    places: [...document.querySelectorAll("#largest td.place")].map((it) => it.textContent),
    flame: [...find("flame").children].map((it) => it.title),
  };
  document.body.append(make("pre", { id: "selftest" }, JSON.stringify(result)));
}
