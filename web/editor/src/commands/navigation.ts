/** Moves the selection and the focus by keyboard. */
import { along, type Direction, nearest } from "../document/layout/directions";
import { nodesOf } from "../document/model";
import { useCanvas } from "../state/canvas";
import { activeSession, graphOf } from "../state/documents";
import { usePage } from "../state/page";
import { fieldAt } from "./fields";

/** Returns the last selected node, from which Shift extends the selection. */
function current(): string | undefined {
  return [...useCanvas.getState().selected].filter((id) => !id.includes(":")).at(-1);
}

function go(next: string | null, extends_ = false): void {
  const { selected, select, reveal } = useCanvas.getState();
  if (next === null) return;
  select(extends_ ? new Set([...selected, next]) : new Set([next]));
  reveal(next);
}

export function walk(way: Direction, extends_: boolean): void {
  const session = activeSession();
  if (session !== null) go(nearest(graphOf(session), current(), way), extends_);
}

export function follow(way: "back" | "forth"): void {
  const [session, from] = [activeSession(), current()];
  if (session !== null && from !== undefined) go(along(graphOf(session), from, way));
}

/** Shows the help of the focused field, else of the selected node. */
export function showHelp(): void {
  const field = useCanvas.getState().menu?.field ?? fieldAt(document.activeElement);
  const id = field?.node ?? current();
  const session = activeSession();
  const node = session && nodesOf(graphOf(session)).find((one) => one.id === id);
  if (node)
    usePage.setState({
      side: "nodes",
      help: { type: node.type, input: field?.widget ?? "" },
    });
}

/** Focuses the first field of the selected node. */
export function enterNode(): void {
  const id = current();
  const card = id && document.querySelector(`[data-node="${CSS.escape(id)}"]`);
  if (card)
    card.querySelector<HTMLElement>(".widget :is(input, textarea, select, button.choice)")?.focus();
}

/** Returns the focus to the canvas. */
export function leaveField(field: HTMLElement): void {
  field.blur();
  document.querySelector<HTMLElement>("main.canvas")?.focus();
}
