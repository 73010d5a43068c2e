/**
 * Shows a large graph seen from afar while it moves. Its nodes are not worked through meanwhile: drawings of all plain ones
 * stand where they are (`Places`), and copies of what looks otherwise, as groups and nodes with a picture.
 */

/** Copies: more of them would cost what the nodes do. */
const MOST = 200;
/** What a node that is drawn as an outline may be and have so that the drawings show all of it. */
const PLAIN =
  ".card.outlined:not(.selected, .running, .failed, .pointed, .muted, .bypassed, .virtual, .collapsed)";
const SHOWN = ".device-bar, .ends";

const STANDING = "standing-in";
/** Milliseconds that they stay after the last movement: to show all nodes is too much work for each turn of a wheel. */
const LASTING = 400;
/** Pixels that the pointer moves until it looks for a node. */
const NEAR = 4;

/** The view that moves; null where it rests. */
let moving: HTMLElement | null = null;
let waitNoLonger = () => {};

/** Has drawings and copies stand in for the nodes, unless too many would have to be copied, or one is used. */
export function standIn(flow: HTMLElement): void {
  waitNoLonger();
  if (moving === flow || flow.classList.contains(STANDING)) return;
  moving = flow;
  const nodes = flow.querySelector(".react-flow__nodes");
  const place = flow.querySelector(".react-flow__viewport-portal");
  if (nodes === null || place === null || isUsed(flow, nodes)) return;
  const others = [...nodes.children].filter((node) => !isPlain(node));
  if (others.length > MOST) return;
  const copies = document.createElement("div");
  copies.className = "standins";
  copies.setAttribute("aria-hidden", "true");
  copies.append(...others.map(copied));
  place.append(copies);
  flow.classList.add(STANDING);
}

/** Has the nodes themselves seen again once the pointer moves or nothing has moved for a while. */
export function standAside(flow: HTMLElement): void {
  waitNoLonger();
  moving = null;
  if (!flow.classList.contains(STANDING)) return;
  let began: PointerEvent | null = null;
  const look = (event: PointerEvent) => {
    began ??= event;
    if (Math.hypot(event.x - began.x, event.y - began.y) > NEAR) end();
  };
  const end = () => {
    waitNoLonger();
    flow.classList.remove(STANDING);
    flow.querySelector(".standins")?.remove();
  };
  const timer = setTimeout(end, LASTING);
  flow.addEventListener("pointermove", look, true);
  waitNoLonger = () => {
    clearTimeout(timer);
    flow.removeEventListener("pointermove", look, true);
  };
}

/** Whether somebody types in a node, or carries one along. */
function isUsed(flow: HTMLElement, nodes: Element): boolean {
  return nodes.contains(document.activeElement) || flow.classList.contains("carrying");
}

function isPlain({ firstElementChild: card }: Element): boolean {
  return card?.matches(PLAIN) === true && [...card.children].every((one) => one.matches(SHOWN));
}

/** Nobody who looks for a node finds its copy. */
function copied(node: Element): Node {
  const copy = node.cloneNode(true) as Element;
  for (const one of [copy, ...copy.querySelectorAll("[data-node], [data-id], [id]")])
    for (const name of ["data-node", "data-id", "data-testid", "id"]) one.removeAttribute(name);
  return copy;
}
