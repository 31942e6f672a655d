// The page about overload: sets the load of a route, and shows twice a second what became of it.

const POLL_EVERY = 500;
// The chart, in its own units.
const [WIDTH, HEIGHT, COLUMNS] = [600, 150, 60];
const PITCH = WIDTH / COLUMNS;
// The top of the chart, in capacities.
const TOP = 1.2;
const RECENT_MS = 5_000;

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const make = (name, text = "") => Object.assign(document.createElement(name), { textContent: text });
const slider = byId("times");
const routes = [...document.querySelectorAll("[name=route]")];
const columns = byId("goodput").querySelector("svg");

// ---- The load ----

/** What to ask for next, whether it is on its way, and when the last change was answered. */
let wanted = null;
let isSending = false;
let changedAt = -Infinity;
let isRunning = false;

const describe = (times, capacity) => `${times}× = ${Math.round(times * capacity)} per second`;
let capacity = 0;

function ask(isOn) {
  const route = routes.find(({ checked }) => checked).value;
  wanted = { tenths: isOn ? Math.round(10 * slider.value) : 0, is_protected: route === "protected" };
  void send();
}

/** Sends the newest wish. */
async function send() {
  if (isSending || wanted === null) return;
  isSending = true;
  const load = wanted;
  wanted = null;
  try {
    const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(load) };
    const answer = await fetch("/overload/load", asked);
    if (!answer.ok) throw new Error(await answer.text());
    showLoad(load);
  } catch (error) {
    put(byId("done"), `Not changed: ${error.message}`);
  }
  changedAt = performance.now();
  isSending = false;
  await send();
}

function showLoad({ tenths, is_protected: isProtected }) {
  isRunning = tenths > 0;
  byId("start").disabled = isRunning;
  byId("stop").disabled = !isRunning;
  const protection = isProtected ? "with protection" : "without protection";
  put(byId("done"), isRunning ? `Running at ${tenths / 10}×, ${protection}.` : "Stopped.");
}

slider.addEventListener("input", () => {
  put(byId("times-now"), describe(slider.value, capacity));
  if (isRunning) ask(true);
});
for (const route of routes) route.addEventListener("change", () => isRunning && ask(true));
byId("start").addEventListener("click", () => {
  ask(true);
  // Otherwise the focus is lost with the button.
  byId("stop").disabled = false;
  byId("stop").focus();
});
byId("stop").addEventListener("click", () => {
  ask(false);
  byId("start").disabled = false;
  byId("start").focus();
});

// ---- The chart ----

const svg = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
const bars = Array.from({ length: COLUMNS }, (_, index) => {
  const [prompt, late] = ["prompt", "late"].map((kind) => {
    const bar = svg("rect");
    bar.setAttribute("class", kind);
    bar.setAttribute("x", index * PITCH + 1);
    bar.setAttribute("width", PITCH - 2);
    return columns.querySelector("g").appendChild(bar);
  });
  return { prompt, late };
});

/** The counts of a slice, by name, of both classes together if none is named. */
const RESULTS = ["sent", "prompt", "late", "shed", "left"];
const sum = (slices, result, of = ["high", "other"]) =>
  slices.reduce((total, slice) => total + of.reduce((part, kind) => part + slice[kind][RESULTS.indexOf(result)], 0), 0);

function drawColumns(slices, last, state) {
  const perSecond = 1_000 / state.slice_ms;
  const scale = HEIGHT / (TOP * state.capacity);
  const top = HEIGHT - state.capacity * scale;
  columns.querySelector(".capacity").setAttribute("d", `M0 ${top}H${WIDTH}`);
  put(byId("goodput").querySelector(".ceiling"), `${state.capacity}: all that the worker can do`);
  bars.forEach(({ prompt, late }, index) => {
    const slice = slices.find(({ number }) => number === last - COLUMNS + 1 + index);
    const goodput = slice ? sum([slice], "prompt") * perSecond * scale : 0;
    const wasted = slice ? sum([slice], "late") * perSecond * scale : 0;
    prompt.setAttribute("class", `prompt ${slice?.isProtected ? "with" : "without"}`);
    prompt.setAttribute("y", HEIGHT - goodput);
    prompt.setAttribute("height", goodput);
    late.setAttribute("y", HEIGHT - goodput - wasted);
    late.setAttribute("height", wasted);
  });
}

// ---- The numbers ----

const ROWS = { sent: "sent", prompt: "within 100 ms", late: "later", shed: "rejected", left: "gave up" };
const cells = {};
for (const [result, label] of Object.entries(ROWS)) {
  const row = byId("now").querySelector("tbody").appendChild(make("tr"));
  row.className = result;
  cells[result] = ["high", "other"].map((kind) => [kind, make("td", "0")]);
  row.append(Object.assign(make("th", label), { scope: "row" }), ...cells[result].map(([, cell]) => cell));
}
const facts = {};
for (const name of ["limit found", "in flight", "waiting", "rejected in all"]) {
  const item = make("div");
  facts[name] = make("dd", "–");
  item.append(make("dt", name), facts[name]);
  byId("limiter").querySelector("dl").append(item);
}
const byClass = ({ high, normal }) => `${high} high, ${normal} normal`;

function showNumbers(slices, last, state) {
  const recent = slices.filter(({ number }) => number > last - RECENT_MS / state.slice_ms);
  for (const result of Object.keys(ROWS)) for (const [kind, cell] of cells[result]) put(cell, String(sum(recent, result, [kind])));
  const perSecond = Math.round((1_000 * sum(recent, "prompt")) / RECENT_MS);
  const words = sum(slices, "sent") ? `${perSecond} per second within 100 ms, of ${state.capacity} that the worker can do` : "Nothing was sent yet";
  columns.setAttribute("aria-label", words);
  const { overload } = state;
  if (!overload) return;
  put(facts["limit found"], String(overload.limit));
  put(facts["in flight"], String(overload.in_flight));
  put(facts.waiting, byClass(overload.waiting));
  put(facts["rejected in all"], byClass(overload.shed));
}

// ---- Polling ----

function show(state, begun) {
  ({ capacity } = state);
  const slices = state.slices.map(([number, isProtected, high, other]) => ({ number, isProtected, high, other }));
  // The slice of now is not over yet.
  const last = Math.floor(state.now_ms / state.slice_ms) - 1;
  drawColumns(slices, last, state);
  showNumbers(slices, last, state);
  const canRun = state.can_protect && state.can_bare;
  slider.disabled = !canRun;
  document.querySelector("fieldset").disabled = !canRun;
  // What the server does, unless a visitor has changed it since the poll began.
  if (!canRun) put(byId("done"), "The configuration of this server has not both routes, /overload and /overload/bare.");
  else if (!isSending && wanted === null && begun > changedAt) {
    if (state.tenths > 0) {
      slider.value = state.tenths / 10;
      for (const route of routes) route.checked = (route.value === "protected") === state.is_protected;
    }
    showLoad(state);
  }
  put(byId("times-now"), describe(slider.value, capacity));
}

function connect(state, text) {
  byId("connection").dataset.state = state;
  document.body.classList.toggle("lost", state === "lost");
  put(byId("connection"), text);
}

/** Whoever polls keeps the load running: not a page that nobody sees. */
async function poll() {
  const begun = performance.now();
  let pause = POLL_EVERY;
  try {
    if (!document.hidden) {
      const answer = await fetch("/overload/state", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
      if (!answer.ok) throw new Error(answer.status);
      show(await answer.json(), begun);
      connect("live", "live");
    }
  } catch (error) {
    console.debug(error);
    pause = 1_000;
    if (byId("connection").dataset.state !== "lost") {
      connect("lost", `No answer from the server since ${new Date().toLocaleTimeString()}. Trying again every second.`);
    }
  }
  setTimeout(poll, pause);
}

void poll();
