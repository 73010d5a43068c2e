/** Makes, unpacks and renames subgraphs, and promotes their widgets. */
import { type Changed, withMade, withPromotion, withUnpacked } from "../../catalog/edits/subgraphs";
import { type Doc, nodesOf } from "../../document/model";
import { graphAt, renameSubgraph, subgraphOf } from "../../document/scope";
import { textOf } from "../../json";
import { useCanvas } from "../../state/canvas";
import { activeSession, docOf, type Session, useDocuments } from "../../state/documents";
import { notify, useLive } from "../../state/live";
import { usePage } from "../../state/page";
import { currentField } from "../fields";
import { selection } from "./selection";

const NAME = "New Subgraph";

export function make(): void {
  const [session, chosen] = [activeSession(), selection()];
  if (session === null || chosen === null) return;
  const { catalog } = useLive.getState();
  const made = withMade(docOf(session), catalog, session.path, chosen.nodes, chosen.groups, NAME);
  if (made === null) return notify("select the nodes for the subgraph");
  become(session, "make a subgraph", made);
}

/** Unpacks the selected subgraph nodes. */
export function unpack(): void {
  const [session, chosen] = [activeSession(), selection()];
  if (session === null || chosen === null) return;
  const { catalog } = useLive.getState();
  let done: Changed = { doc: docOf(session), nodes: [] };
  for (const node of chosen.nodes) {
    const next = withUnpacked(done.doc, catalog, session.path, node);
    if (next !== null) done = { doc: next.doc, nodes: [...done.nodes, ...next.nodes] };
  }
  if (done.doc === docOf(session)) return notify("none of the selected nodes is a subgraph");
  become(session, "unpack a subgraph", done);
}

function become({ id }: Session, label: string, { doc, nodes }: Changed): void {
  useDocuments.getState().changeDocument(id, label, () => doc);
  requestAnimationFrame(() => useCanvas.getState().select(new Set(nodes)));
}

interface NamedSubgraph {
  readonly type: string;
  readonly name: string;
}

/** Returns the subgraph of the selected node, else the one in view. */
export function currentSubgraph(): NamedSubgraph | null {
  const [session, chosen] = [activeSession(), selection()];
  if (session === null || chosen === null) return null;
  const doc = docOf(session);
  const around: Doc = graphAt(doc, session.path.slice(0, -1)) ?? doc;
  const types = [
    ...nodesOf(chosen.graph).filter(({ id }) => chosen.nodes.has(id)),
    ...nodesOf(around).filter(({ id }) => id === session.path.at(-1)),
  ].map(({ type }) => type);
  const type = types.find((one) => subgraphOf(doc, one) !== undefined);
  return type === undefined ? null : { type, name: textOf(subgraphOf(doc, type)?.name) };
}

/** Asks for a new name of a subgraph. */
export function askForName(): void {
  if (currentSubgraph() === null) notify("select or open a subgraph");
  else usePage.setState({ dialog: "rename-subgraph" });
}

export function rename(type: string, name: string): void {
  const session = activeSession();
  if (session !== null)
    useDocuments
      .getState()
      .changeDocument(session.id, "rename a subgraph", (doc) => renameSubgraph(doc, type, name));
}

/** Promotes the current field to the node of the subgraph in view, or undoes its promotion. */
export function promote(): void {
  const [session, field] = [activeSession(), currentField()];
  if (session === null) return;
  if (session.path.length === 0 || field === null)
    return notify("point at or focus a field inside a subgraph");
  const { catalog } = useLive.getState();
  const done = withPromotion(docOf(session), catalog, session.path, field.node, field.widget);
  if (done === null) return notify(`${field.widget} cannot be shown on the subgraph's node`);
  const label = done.shown ? `show ${field.widget} outside` : `hide ${field.widget} outside`;
  useDocuments.getState().changeDocument(session.id, label, () => done.doc);
  notify(
    done.shown
      ? `${field.widget} is shown on the subgraph's node`
      : `${field.widget} is no longer shown on the subgraph's node`,
  );
}
