/** Rewires what is selected in the graph in view. */
import { dissolved } from "../../catalog/rewiring";
import { nodesOf } from "../../document/model";
import { change, onNodes } from "./selection";

/** Takes the selected nodes out of their links, which stay. */
export function dissolve(): void {
  onNodes((graph, nodes) => {
    if (nodesOf(graph).some(({ id }) => nodes.has(id)))
      change("dissolve", (now) => dissolved(now, nodes));
  });
}
