/**
 * Mounts the nodes of a large graph that come into view a few at a time. The others stay hidden.
 */
import type { ReactFlowState, useStoreApi } from "@xyflow/react";
import { boxOf, viewOf } from "../bounds";
import type { Drawn } from "../layout";
import { overlap } from "../links/geometry";
import type { WireEdge } from "../links/Wire";
import { queueBox } from "./renderQueue";

/**
 * Nodes mounted per turn, while the viewport moves and while it rests. Most of the cost is per
 * turn, not per node.
 */
const [MOVING_NODES, RESTING_NODES] = [4, 24];

/** Nodes that wait for their turn. */
const waiting = new Set<string>();

type State = ReactFlowState<Drawn, WireEdge>;
type Store = ReturnType<typeof useStoreApi<Drawn, WireEdge>>;

/** Hides the nodes in view that are not mounted, and returns their ids. */
export function hideUnmounted(state: State): readonly string[] {
  const mounted = new Set<string | undefined>(
    [...(state.domNode?.querySelectorAll<HTMLElement>(".react-flow__node") ?? [])].map(
      ({ dataset }) => dataset.id,
    ),
  );
  const view = viewOf(state);
  const found: string[] = [];
  for (const [id, node] of state.nodeLookup) {
    const isPlaced = mounted.has(id) || waiting.has(id) || node.dragging;
    if (isPlaced || !overlap(boxOf(node), view)) continue;
    node.hidden = true;
    found.push(id);
  }
  return found;
}

/** Mounts nodes in later turns. */
export function mountInBatches(store: Store, ids: readonly string[]): void {
  if (ids.length === 0) return;
  for (const id of ids) waiting.add(id);
  queueBox((moves) => {
    const { nodeLookup } = store.getState();
    const count = moves ? MOVING_NODES : RESTING_NODES;
    for (const id of ids.slice(0, count)) {
      waiting.delete(id);
      const node = nodeLookup.get(id);
      if (node !== undefined) node.hidden = false;
    }
    store.setState({});
    mountInBatches(store, ids.slice(count));
  });
}
