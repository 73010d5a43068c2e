/** Hides and shows links of the graph in view. */
import { hiddenOf, hideAll, hideLinks, hideType, showLinks } from "../../document/hidden";
import { linksOf } from "../../document/model";
import { linkName, useCanvas } from "../../state/canvas";
import { notify } from "../../state/live";
import { change, selection } from "./selection";

export function toggleAll(): void {
  const chosen = selection();
  if (chosen === null) return;
  const { all } = hiddenOf(chosen.graph);
  change(all ? "show links" : "hide all links", (now) => hideAll(now, !all));
}

export function toggleType(type: string): void {
  const chosen = selection();
  if (chosen === null) return;
  const on = !hiddenOf(chosen.graph).types.has(type);
  change(`${on ? "hide" : "show"} ${type} links`, (now) => hideType(now, type, on));
}

/** Returns the selected links or, without any, the links of the selected nodes. */
function chosenLinks(): ReadonlySet<number> {
  const chosen = selection();
  const links = new Set([...useCanvas.getState().links].map(Number));
  if (chosen === null || links.size > 0) return links;
  const { graph, nodes } = chosen;
  const own = linksOf(graph).filter(({ from, to }) => nodes.has(from) || nodes.has(to));
  return new Set(own.map(({ id }) => id));
}

export function toggleLinks(): void {
  const [chosen, links] = [selection(), chosenLinks()];
  if (chosen === null || links.size === 0) return notify("no link is selected");
  const { names } = hiddenOf(chosen.graph);
  if ([...links].every((id) => names.has(id))) change("show links", (now) => showLinks(now, links));
  else change("hide links", (now) => hideLinks(now, links));
}

/** Hides the selected link and asks for its name. */
export function nameLink(): void {
  const [link] = chosenLinks();
  if (link === undefined) return notify("no link is selected");
  const name = linkName(String(link));
  change(
    "hide links",
    (now) => (hiddenOf(now).names.has(link) ? now : hideLinks(now, new Set([link]))),
    name,
  );
  useCanvas.setState({ renaming: name });
}
