/** Finds the link into which a dropped node is inserted. */
import { useCallback, useRef } from "react";
import { inserted, isInsertable } from "../../catalog/edits/rewire";
import type { Box } from "../../document/layout/alignment";
import type { Doc } from "../../document/model";
import { useCanvas } from "../../state/canvas";
import { useLive } from "../../state/live";
import type { Drawn } from "../layout";
import {
  drawnLinks,
  type Line,
  lineOf,
  nearestPart,
  overlap,
  runsThrough,
} from "../links/geometry";

/** A link as drawn when the drag began, and whether the node fits into it. */
interface Candidate {
  readonly id: number;
  readonly line: () => Line;
  readonly bounds: Box;
  readonly fits: () => boolean;
}

function once<Value>(make: () => Value): () => Value {
  let made: { readonly value: Value } | null = null;
  return () => (made ??= { value: make() }).value;
}

function candidates(graph: Doc, node: string): readonly Candidate[] {
  const { catalog } = useLive.getState();
  if (!isInsertable(graph, catalog, node)) return [];
  return drawnLinks().map((link) => ({
    id: link.id,
    line: once(() => lineOf(link)),
    bounds: link.bounds,
    fits: once(() => inserted(graph, catalog, node, link.id) !== null),
  }));
}

export function useLinkInsertion(graph: Doc) {
  const known = useRef<readonly Candidate[] | null>(null);

  /** Marks the link beneath a node that is dragged alone. */
  const seek = useCallback(
    ({ id, type, position, width = 0, measured }: Drawn) => {
      if (type !== "card") return;
      known.current ??= candidates(graph, id);
      const box = { ...position, width, height: measured?.height ?? 0 };
      const middle = { x: position.x + width / 2, y: position.y + box.height / 2 };
      const [best] = known.current
        .filter(
          ({ bounds, line, fits }) => overlap(bounds, box) && runsThrough(line(), box) && fits(),
        )
        .map((one) => ({ id: one.id, far: nearestPart(one.line(), middle).far }))
        .sort((one, other) => one.far - other.far);
      const into = best?.id ?? null;
      if (useCanvas.getState().into !== into) useCanvas.setState({ into });
    },
    [graph],
  );

  /** Returns the marked link and clears the mark. */
  const taken = useCallback((): number | null => {
    const { into } = useCanvas.getState();
    known.current = null;
    if (into !== null) useCanvas.setState({ into: null });
    return into;
  }, []);

  return { seek, taken };
}

/** Returns the graph with a node inserted into a link, or unchanged if it does not fit. */
export function insertedInto(graph: Doc, node: string, link: number | null): Doc {
  return link === null ? graph : (inserted(graph, useLive.getState().catalog, node, link) ?? graph);
}

/** Returns the link drawn at a point of the page. */
export function linkAt(x: number, y: number): number | null {
  const edge = document
    .elementsFromPoint(x, y)
    .map((element) => element.closest<SVGGElement>(".react-flow__edge"))
    .find((found) => found !== null);
  return edge?.dataset.id === undefined ? null : Number(edge.dataset.id);
}
