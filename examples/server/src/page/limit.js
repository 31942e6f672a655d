// Changes the limit of all routes while they run.

const slider = document.getElementById("limit");
const label = document.getElementById("limit-now");
/** The limit to send next, and whether one is on its way. */
let wanted = null;
let isSending = false;
/** When the last change was answered. A poll that began before may have the limit from before. */
let changedAt = -Infinity;

const say = (text) => {
  if (label.textContent !== text) label.textContent = text;
};

/** Sends the newest position of the slider. */
async function send() {
  if (isSending || wanted === null) return;
  isSending = true;
  const limit = wanted;
  wanted = null;
  try {
    const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ limit }) };
    const answer = await fetch("/live/limit", asked);
    if (!answer.ok) say("not changed");
  } catch {
    say("not changed");
  }
  changedAt = performance.now();
  isSending = false;
  await send();
}

/** Shows the limit in force that a poll found, unless the slider has been moved since it began. */
export function show(canChange, routes, begun) {
  slider.disabled = !canChange;
  if (!canChange) return say("as in the file");
  if (isSending || wanted !== null || begun < changedAt) return;
  const { limit } = routes.find((route) => route.limit)?.limit ?? {};
  if (Number(slider.value) !== limit) slider.value = limit;
  say(`${limit} per second`);
}

/** Sends each move of the slider. `onChange` is called when it rests. */
export function listen(onChange) {
  slider.addEventListener("input", () => {
    wanted = Number(slider.value);
    say(`${wanted} per second`);
    void send();
  });
  slider.addEventListener("change", onChange);
}
