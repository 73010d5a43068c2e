/** Shows where nodes are: in the overview, and in a large graph that moves where they are not drawn yet. */
import { memo, useDeferredValue, useMemo } from "react";
import { Layer } from "./Layer";
import type { Drawn } from "./layout";
import { outlines } from "./outlines";
import { Overview } from "./Overview";

export const Places = memo(function Places({
  nodes,
  large,
}: {
  readonly nodes: readonly Drawn[];
  readonly large: boolean;
}) {
  const drawn = useDeferredValue(nodes); // a node that is changed comes before its place here
  const found = useMemo(() => outlines(drawn), [drawn]);
  return (
    <>
      {large && (
        <Layer>
          <svg className="places" aria-hidden="true">
            <path d={found.others} />
          </svg>
        </Layer>
      )}
      <Overview outlines={found} />
    </>
  );
});
