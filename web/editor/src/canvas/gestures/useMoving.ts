/** Moves nodes and groups: while they are dragged only what is drawn, then the document, once. */
import { type SetStateAction, useCallback, useRef } from "react";
import { moveNodes } from "../../document/commands";
import { moveGroup, resizeGroup, within } from "../../document/groups";
import { type Doc, groupsOf } from "../../document/model";
import { moveReroutes } from "../../document/reroutes";
import { type Drawn, placeOf } from "../layout";
import { useAligning } from "./useAligning";
import { insertedInto, useInserting } from "./useInserting";

interface Carried {
  readonly x: number;
  readonly y: number;
  readonly places: ReadonlyMap<string, { readonly x: number; readonly y: number }>;
}

type DragEvent = Pick<MouseEvent | TouchEvent, "ctrlKey" | "metaKey">;

export function useMoving(
  graph: Doc,
  change: (label: string, edit: (graph: Doc) => Doc) => void,
  setNodes: (next: SetStateAction<Drawn[]>) => void,
) {
  const carried = useRef<Carried | null>(null);
  const { seek, taken } = useInserting(graph);
  const { aligned, setFree, settled } = useAligning();

  const onNodeDragStart = useCallback(
    (event: DragEvent, node: Drawn, dragged: Drawn[]) => {
      setFree(event.ctrlKey || event.metaKey);
      const group = node.type === "frame" ? groupsOf(graph)[node.data.number] : undefined;
      const alone = dragged.length === 1 && group !== undefined;
      const inside = new Set(alone ? within(graph, group).map(({ id }) => id) : []);
      if (inside.size === 0) return;
      setNodes((all) => {
        const members = all.filter(({ id }) => inside.has(id));
        const places = new Map(members.map(({ id, position }) => [id, position]));
        carried.current = { ...node.position, places };
        return all;
      });
    },
    [graph, setFree, setNodes],
  );

  const onNodeDrag = useCallback(
    (event: DragEvent, node: Drawn, dragged: Drawn[]) => {
      setFree(event.ctrlKey || event.metaKey);
      if (dragged.length === 1) seek(node);
      const started = carried.current;
      if (started === null) return;
      const [right, down] = [node.position.x - started.x, node.position.y - started.y];
      setNodes((all) =>
        all.map((one) => {
          const from = started.places.get(one.id);
          return from ? { ...one, position: { x: from.x + right, y: from.y + down } } : one;
        }),
      );
    },
    [seek, setFree, setNodes],
  );

  const onNodeDragStop = useCallback(
    (_: unknown, node: Drawn, dragged: Drawn[]) => {
      carried.current = null;
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
    [change, settled, taken],
  );

  return { aligned, dragging: { onNodeDragStart, onNodeDrag, onNodeDragStop } };
}

/** Moves a frame alone, where its nodes were dragged along by hand. */
function movedFrame(graph: Doc, node: Drawn & { readonly type: "frame" }): Doc {
  const group = groupsOf(graph)[node.data.number];
  return group === undefined
    ? graph
    : resizeGroup(graph, node.data.number, { ...group, ...placeOf(node) });
}
