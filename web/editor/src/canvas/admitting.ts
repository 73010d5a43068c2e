/** Has the nodes of a large graph that come into view mounted a few at a time. Until then they are hidden. */
import type { InternalNode, ReactFlowState, useStoreApi, Viewport } from "@xyflow/react";
import type { Box } from "../document/aligning";
import type { Drawn } from "./layout";
import { overlap } from "./lines";
import { boxInTurn } from "./turns";
import type { WireEdge } from "./Wire";

/** Nodes that come at once. */
const AT_ONCE = 4;

type State = ReactFlowState<Drawn, WireEdge>;
type Store = ReturnType<typeof useStoreApi<Drawn, WireEdge>>;

/** Hides the nodes that are in a view and were not in another; returns them. */
export function entering(state: State, before: Viewport, now: Viewport): readonly string[] {
  const [was, is] = [seen(state, before), seen(state, now)];
  const found: string[] = [];
  for (const [id, node] of state.nodeLookup) {
    const box = boxOf(node);
    if (!overlap(box, is) || (overlap(box, was) && !node.hidden)) continue;
    node.hidden = true;
    found.push(id);
  }
  return found;
}

/** Has nodes mounted when it is their turn. */
export function admit(store: Store, ids: readonly string[]): void {
  for (let first = 0; first < ids.length; first += AT_ONCE) {
    boxInTurn(() => {
      const { nodeLookup } = store.getState();
      for (const id of ids.slice(first, first + AT_ONCE)) {
        const node = nodeLookup.get(id);
        if (node !== undefined) node.hidden = false;
      }
      store.setState({});
    });
  }
}

function seen({ width, height }: State, { x, y, zoom }: Viewport): Box {
  return { x: -x / zoom, y: -y / zoom, width: width / zoom, height: height / zoom };
}

function boxOf(node: InternalNode<Drawn>): Box {
  const { measured, internals, width = 0, initialHeight = 0, height = initialHeight } = node;
  return {
    ...internals.positionAbsolute,
    width: measured.width ?? width,
    height: measured.height ?? height,
  };
}
