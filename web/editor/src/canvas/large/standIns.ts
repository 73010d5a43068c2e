/**
 * Replaces the nodes of a large graph at low zoom while the viewport moves, so that the browser
 * skips them. Plain nodes are drawn as boxes (`NodeBoxes`); groups, nodes with an image and others are
 * cloned.
 */

/** The maximum number of clones; more would cost as much as the nodes. */
const MAX_CLONES = 200;
/** The states and contents of an outlined node that the box drawings show completely. */
const PLAIN =
  ".card.outlined:not(.selected, .running, .failed, .pointed, .muted, .bypassed, .virtual, .collapsed)";
const SHOWN = ".device-bar, .ends";

const STAND_IN_CLASS = "standing-in";
/**
 * Milliseconds that stand-ins stay after the last movement. Showing all nodes after each turn of
 * the wheel would be too slow.
 */
const RETURN_DELAY_MS = 400;
/** Pixels that the pointer moves before the nodes return. */
const RETURN_PIXELS = 4;

/** The canvas that is moving; null while it rests. */
let moving: HTMLElement | null = null;
let waitNoLonger = () => {};

/** Shows stand-ins in place of the nodes, unless too many need clones or a node is in use. */
export function showStandIns(flow: HTMLElement): void {
  waitNoLonger();
  if (moving === flow || flow.classList.contains(STAND_IN_CLASS)) return;
  moving = flow;
  const nodes = flow.querySelector(".react-flow__nodes");
  const place = flow.querySelector(".react-flow__viewport-portal");
  if (nodes === null || place === null || isUsed(flow, nodes)) return;
  const others = [...nodes.children].filter((node) => !isPlain(node));
  if (others.length > MAX_CLONES) return;
  const copies = document.createElement("div");
  copies.className = "standins";
  copies.setAttribute("aria-hidden", "true");
  copies.append(...others.map(copied));
  place.append(copies);
  flow.classList.add(STAND_IN_CLASS);
}

/** Shows the nodes again once the pointer moves, or after a pause. */
export function hideStandIns(flow: HTMLElement): void {
  waitNoLonger();
  moving = null;
  if (!flow.classList.contains(STAND_IN_CLASS)) return;
  let began: PointerEvent | null = null;
  const look = (event: PointerEvent) => {
    began ??= event;
    if (Math.hypot(event.x - began.x, event.y - began.y) > RETURN_PIXELS) end();
  };
  const end = () => {
    waitNoLonger();
    flow.classList.remove(STAND_IN_CLASS);
    flow.querySelector(".standins")?.remove();
  };
  const timer = setTimeout(end, RETURN_DELAY_MS);
  flow.addEventListener("pointermove", look, true);
  waitNoLonger = () => {
    clearTimeout(timer);
    flow.removeEventListener("pointermove", look, true);
  };
}

/** Returns whether the user types in a node or drags one. */
function isUsed(flow: HTMLElement, nodes: Element): boolean {
  return nodes.contains(document.activeElement) || flow.classList.contains("carrying");
}

function isPlain({ firstElementChild: card }: Element): boolean {
  return card?.matches(PLAIN) === true && [...card.children].every((one) => one.matches(SHOWN));
}

/** Clones a node without its ids, so that lookups do not find the clone. */
function copied(node: Element): Node {
  const copy = node.cloneNode(true) as Element;
  for (const one of [copy, ...copy.querySelectorAll("[data-node], [data-id], [id]")])
    for (const name of ["data-node", "data-id", "data-testid", "id"]) one.removeAttribute(name);
  return copy;
}
