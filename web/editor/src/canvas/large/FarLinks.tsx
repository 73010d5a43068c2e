/**
 * Draws the links of a large graph at low zoom: one path for each style, without pointer events.
 */
import { Position, useStore, useStoreApi } from "@xyflow/react";
import { memo, useMemo } from "react";
import { useHeat } from "../../plan/HeatLook";
import { noteRender } from "../../renders";
import { Layer } from "../Layer";
import type { Drawn } from "../layout";
import { endAt } from "../links/ends";
import { linePath, stubsPath, type WireEdge } from "../links/Wire";

export const FarLinks = memo(function FarLinks({ edges }: { readonly edges: readonly WireEdge[] }) {
  noteRender("far links");
  const store = useStoreApi<Drawn, WireEdge>();
  const nodes = useStore((state) => state.nodes); // recomputes when `nodeLookup` changes
  const critical = useHeat(({ links }) => [...links].join(), "");
  const looks = useMemo(() => {
    const { nodeLookup } = store.getState();
    const onPath = new Set(critical.split(","));
    const found = new Map<string, string[]>();
    for (const edge of edges) {
      const from = endAt(nodeLookup.get(edge.source), "source", edge.sourceHandle);
      const to = endAt(nodeLookup.get(edge.target), "target", edge.targetHandle);
      if (from === null || to === null) continue;
      const { badge = null, through = [] } = edge.data ?? {};
      const isStub = badge !== null && !edge.selected;
      const middle = through.flatMap((id) => nodeLookup.get(id)?.position ?? []);
      const look = [
        edge.className,
        edge.selected ? "selected" : "",
        onPath.has(edge.id) ? "critical" : "",
        isStub ? "stub" : "",
      ].join(" ");
      const path = isStub
        ? stubsPath(from, to)
        : linePath([from, ...middle, to], Position.Right, Position.Left);
      const same = found.get(look);
      if (same === undefined) found.set(look, [path]);
      else same.push(path);
    }
    return [...found];
  }, [critical, edges, nodes, store]);
  return (
    <Layer>
      <svg className="far-links" aria-hidden="true">
        {looks.map(([look, paths]) => (
          <g key={look} className={look}>
            <path
              className={`react-flow__edge-path ${look.includes("critical") ? "critical" : ""}`}
              d={paths.join(" ")}
            />
          </g>
        ))}
      </svg>
    </Layer>
  );
});
