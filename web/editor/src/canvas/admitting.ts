/** Has the nodes of a large graph that come into view mounted a few at a time. Until then they are hidden. */
import type { ReactFlowState, useStoreApi } from "@xyflow/react";
import type { Drawn } from "./layout";
import { overlap } from "./lines";
import { boxOf, viewOf } from "./outlines";
import { boxInTurn } from "./turns";
import type { WireEdge } from "./Wire";

/** Nodes that come at once, while the view moves and while it rests: most of the cost is the same for one and for many. */
const [MOVING, RESTING] = [4, 24];

/** Those that wait for their turn. */
const waiting = new Set<string>();

type State = ReactFlowState<Drawn, WireEdge>;
type Store = ReturnType<typeof useStoreApi<Drawn, WireEdge>>;

/** Hides the nodes that are in view and not mounted; returns them. */
export function entering(state: State): readonly string[] {
  const mounted = new Set<string | undefined>(
    [...(state.domNode?.querySelectorAll<HTMLElement>(".react-flow__node") ?? [])].map(
      ({ dataset }) => dataset.id,
    ),
  );
  const view = viewOf(state);
  const found: string[] = [];
  for (const [id, node] of state.nodeLookup) {
    const isThere = mounted.has(id) || waiting.has(id) || node.dragging;
    if (isThere || !overlap(boxOf(node), view)) continue;
    node.hidden = true;
    found.push(id);
  }
  return found;
}

/** Has nodes mounted when it is their turn. */
export function admit(store: Store, ids: readonly string[]): void {
  if (ids.length === 0) return;
  for (const id of ids) waiting.add(id);
  boxInTurn((moves) => {
    const { nodeLookup } = store.getState();
    const count = moves ? MOVING : RESTING;
    for (const id of ids.slice(0, count)) {
      waiting.delete(id);
      const node = nodeLookup.get(id);
      if (node !== undefined) node.hidden = false;
    }
    store.setState({});
    admit(store, ids.slice(count));
  });
}
