/** Rewires what is selected in the graph in view. */
import { dissolved } from "../../catalog/rewiring";
import { removeLinks } from "../../document/links";
import { linksOf, nodesOf } from "../../document/model";
import { change, onNodes } from "./selection";

/** Takes the selected nodes out of their links, which stay. */
export function dissolve(): void {
  onNodes((graph, nodes) => {
    if (nodesOf(graph).some(({ id }) => nodes.has(id)))
      change("dissolve", (now) => dissolved(now, nodes));
  });
}

/** Cuts all links of the selected nodes. */
export function cutLinks(): void {
  onNodes((graph, nodes) => {
    const gone = linksOf(graph).filter(({ from, to }) => nodes.has(from) || nodes.has(to));
    change("cut all links", (now) => removeLinks(now, new Set(gone.map(({ id }) => id))));
  });
}
