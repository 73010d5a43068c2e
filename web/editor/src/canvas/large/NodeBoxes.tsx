/**
 * Shows the boxes of all nodes in the overview, and in a large graph behind nodes not drawn yet.
 */
import { memo, useDeferredValue, useMemo } from "react";
import { placesOf } from "../../plan/model/marks";
import { deviceLook } from "../../plan/model/words";
import { useOverlay } from "../../plan/NodePlan";
import { useFront } from "../../state/documents";
import { Layer } from "../Layer";
import type { Drawn } from "../layout";
import { barPaths, boxPaths } from "./boxPaths";
import { Overview } from "./Overview";

export const NodeBoxes = memo(function NodeBoxes({
  nodes,
  large,
}: {
  readonly nodes: readonly Drawn[];
  readonly large: boolean;
}) {
  const drawn = useDeferredValue(nodes); // changed nodes are drawn before their boxes here
  const found = useMemo(() => boxPaths(drawn), [drawn]);
  return (
    <>
      {large && (
        <Layer>
          <svg className="places" aria-hidden="true">
            <path d={found.others} />
            {[...found.heads].map(([colour, path]) => (
              <path key={colour} className="head" d={path} style={{ fill: colour }} />
            ))}
            <Bars nodes={drawn} />
          </svg>
        </Layer>
      )}
      <Overview boxPaths={found} />
    </>
  );
});

/** Draws the bars that `DeviceBar` draws inside nodes. */
const Bars = memo(function Bars({ nodes }: { readonly nodes: readonly Drawn[] }) {
  const path = useFront((session) => session.path.map((id) => `${id}:`).join(""), "");
  const { plans, old } = useOverlay();
  const found = useMemo(() => {
    const all = new Map(plans.toReversed().flatMap((plan) => [...placesOf(plan)]));
    return barPaths(nodes, (id) => all.get(path + id) ?? new Map());
  }, [nodes, plans, path]);
  return (
    <g className={old ? "old-bars" : "bars"}>
      {[...found].map(([device, bar]) => (
        <path key={device} className={deviceLook(device)} d={bar} />
      ))}
    </g>
  );
});
