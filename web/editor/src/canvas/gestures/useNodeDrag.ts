/** Moves nodes and groups. A drag changes only the drawing; the drop changes the document once. */
import { useCallback, useRef } from "react";
import { moveNodes } from "../../document/commands";
import { moveGroup, resizeGroup, within } from "../../document/groups";
import { type Doc, groupsOf } from "../../document/model";
import { moveReroutes } from "../../document/reroutes";
import { type Drawn, placeOf } from "../layout";
import { useAlignment } from "./useAlignment";
import { useDragPreview } from "./useDragPreview";
import { insertedInto, useLinkInsertion } from "./useLinkInsertion";

/** The start position of a dragged group and of the nodes in it. */
interface Started {
  readonly x: number;
  readonly y: number;
  readonly places: ReadonlyMap<string, { readonly x: number; readonly y: number }>;
}

type DragEvent = Pick<MouseEvent | TouchEvent, "ctrlKey" | "metaKey">;

export function useNodeDrag(
  graph: Doc,
  nodes: readonly Drawn[],
  change: (label: string, edit: (graph: Doc) => Doc) => void,
) {
  const started = useRef<Started | null>(null);
  const { seek, taken } = useLinkInsertion(graph);
  const { aligned, setFree, settled } = useAlignment();
  const left = useCallback(() => {
    started.current = null;
    settled();
    taken();
  }, [settled, taken]);
  const { begin, draw, carry, end } = useDragPreview(nodes, left);

  const onNodeDragStart = useCallback(
    (event: DragEvent, node: Drawn, dragged: Drawn[]) => {
      begin();
      setFree(event.ctrlKey || event.metaKey);
      const group = node.type === "frame" ? groupsOf(graph)[node.data.number] : undefined;
      const alone = dragged.length === 1 && group !== undefined;
      const inside = new Set(alone ? within(graph, group).map(({ id }) => id) : []);
      if (inside.size === 0) return;
      const members = nodes.filter(({ id }) => inside.has(id));
      const places = new Map(members.map(({ id, position }) => [id, position]));
      started.current = { ...node.position, places };
    },
    [begin, graph, nodes, setFree],
  );

  const onNodeDrag = useCallback(
    (event: DragEvent, node: Drawn, dragged: Drawn[]) => {
      setFree(event.ctrlKey || event.metaKey);
      if (dragged.length === 1) seek(node);
      if (started.current === null) return;
      const { x: fromX, y: fromY, places } = started.current;
      const [right, down] = [node.position.x - fromX, node.position.y - fromY];
      draw(
        new Map([...places].map(([id, { x, y }]) => [id, { x: x + right, y: y + down }] as const)),
      );
    },
    [draw, seek, setFree],
  );

  const onNodeDragStop = useCallback(
    (_: unknown, node: Drawn, dragged: Drawn[]) => {
      started.current = null;
      end();
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
      change(into === null ? label : "insert a node into a link", (now) =>
        groups.reduce(
          (next, group) => movedFrame(next, group),
          moveReroutes(insertedInto(moveNodes(now, places), node.id, into), points),
        ),
      );
    },
    [change, end, settled, taken],
  );

  return { aligned, carry, dragging: { onNodeDragStart, onNodeDrag, onNodeDragStop } };
}

/** Moves a frame without its nodes, which were dragged along. */
function movedFrame(graph: Doc, node: Drawn & { readonly type: "frame" }): Doc {
  const group = groupsOf(graph)[node.data.number];
  return group === undefined
    ? graph
    : resizeGroup(graph, node.data.number, { ...group, ...placeOf(node) });
}
