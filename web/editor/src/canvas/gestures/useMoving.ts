/** Moves nodes and groups: while they are dragged only what is drawn, then the document, once. */
import { type NodeChange, useStoreApi } from "@xyflow/react";
import { useCallback, useRef } from "react";
import { moveNodes, type Place } from "../../document/commands";
import { moveGroup, resizeGroup, within } from "../../document/groups";
import { type Doc, groupsOf } from "../../document/model";
import { moveReroutes } from "../../document/reroutes";
import { type Drawn, placeOf } from "../layout";
import type { WireEdge } from "../Wire";
import { useAligning } from "./useAligning";
import { insertedInto, useInserting } from "./useInserting";

interface Carried {
  readonly x: number;
  readonly y: number;
  readonly places: ReadonlyMap<string, { readonly x: number; readonly y: number }>;
}

type DragEvent = Pick<MouseEvent | TouchEvent, "ctrlKey" | "metaKey">;

export function useMoving(graph: Doc, change: (label: string, edit: (graph: Doc) => Doc) => void) {
  const store = useStoreApi<Drawn, WireEdge>();
  const carried = useRef<Carried | null>(null);
  const { seek, taken } = useInserting(graph);
  const { aligned, setFree, settled } = useAligning();

  const onNodeDragStart = useCallback(
    (event: DragEvent, node: Drawn, dragged: Drawn[]) => {
      store.getState().domNode?.classList.add("carrying");
      setFree(event.ctrlKey || event.metaKey);
      const group = node.type === "frame" ? groupsOf(graph)[node.data.number] : undefined;
      const alone = dragged.length === 1 && group !== undefined;
      const inside = new Set(alone ? within(graph, group).map(({ id }) => id) : []);
      if (inside.size === 0) return;
      const members = store.getState().nodes.filter(({ id }) => inside.has(id));
      const places = new Map(members.map(({ id, position }) => [id, position]));
      carried.current = { ...node.position, places };
    },
    [graph, setFree, store],
  );

  /** Draws nodes elsewhere; what is known of their places stays as it is. */
  const draw = useCallback(
    (places: ReadonlyMap<string, Place>) => {
      const { nodeLookup, nodes } = store.getState();
      for (const [id, position] of places) {
        const node = nodeLookup.get(id);
        if (node === undefined) continue;
        const { x, y } = node.internals.positionAbsolute;
        const positionAbsolute = {
          x: x + position.x - node.position.x,
          y: y + position.y - node.position.y,
        };
        nodeLookup.set(id, {
          ...node,
          position,
          internals: { ...node.internals, positionAbsolute },
        });
      }
      store.setState({ nodes: [...nodes] });
    },
    [store],
  );

  /** Draws what is dragged where it is; false where there is more to do, or it was dropped. */
  const carry = useCallback(
    (changes: readonly NodeChange<Drawn>[]): boolean => {
      const places = new Map<string, Place>();
      for (const one of changes) {
        if (one.type !== "position" || one.dragging !== true || !one.position) return false;
        places.set(one.id, one.position);
      }
      draw(places);
      return true;
    },
    [draw],
  );

  const onNodeDrag = useCallback(
    (event: DragEvent, node: Drawn, dragged: Drawn[]) => {
      setFree(event.ctrlKey || event.metaKey);
      if (dragged.length === 1) seek(node);
      const started = carried.current;
      if (started === null) return;
      const [right, down] = [node.position.x - started.x, node.position.y - started.y];
      draw(
        new Map(
          [...started.places].map(([id, { x, y }]) => [id, { x: x + right, y: y + down }] as const),
        ),
      );
    },
    [draw, seek, setFree],
  );

  const onNodeDragStop = useCallback(
    (_: unknown, node: Drawn, dragged: Drawn[]) => {
      carried.current = null;
      store.getState().domNode?.classList.remove("carrying");
      const { x: right, y: down } = settled();
      const moved = dragged.map((one) => {
        const { x, y } = one.position;
        return { ...one, position: { x: x + right, y: y + down } };
      });
      const into = taken();
      const groups = moved.filter((one) => one.type === "frame");
      if (moved.length === 1 && node.type === "frame") {
        const { x, y } = placeOf(node);
        change("move group", (now) => moveGroup(now, node.data.number, { x, y }));
        return;
      }
      const places = new Map(moved.map((one) => [one.id, placeOf(one)]));
      const points = new Map(
        moved.flatMap((one) =>
          one.type === "point" ? [[one.data.reroute.id, placeOf(one)] as const] : [],
        ),
      );
      const label = moved.length > 1 ? `move ${moved.length} nodes` : "move";
      change(into === null ? label : "put a node into a link", (now) =>
        groups.reduce(
          (next, group) => movedFrame(next, group),
          moveReroutes(insertedInto(moveNodes(now, places), node.id, into), points),
        ),
      );
    },
    [change, settled, store, taken],
  );

  return { aligned, carry, dragging: { onNodeDragStart, onNodeDrag, onNodeDragStop } };
}

/** Moves a frame alone, where its nodes were dragged along by hand. */
function movedFrame(graph: Doc, node: Drawn & { readonly type: "frame" }): Doc {
  const group = groupsOf(graph)[node.data.number];
  return group === undefined
    ? graph
    : resizeGroup(graph, node.data.number, { ...group, ...placeOf(node) });
}
