/** Runs the active document with several values of fields. */
import { setWidget } from "../catalog/dynamic";
import type { Placed } from "../catalog/placed";
import { shownPlaced } from "../catalog/promoted";
import { type Doc, nodesOf } from "../document/model";
import { changeAt, graphAt, subgraphOf } from "../document/scope";
import { cancel } from "../server/client";
import { activeSession, docOf } from "../state/documents";
import { notify, useLive } from "../state/live";
import { usePage } from "../state/page";
import { useSweep } from "../state/sweep";
import { type Axis, combinations, countOf, MAX_AXES, MAX_RUNS, typedValues } from "../sweep/sweep";
import { currentField } from "./fields";
import { send } from "./run";

/** A field that can be swept. */
export interface SweptField extends Placed {
  readonly node: string;
  readonly title: string;
}

/** Returns the fields of the swept graph, except linked ones. */
export function fieldsOf(doc: Doc): readonly SweptField[] {
  const { catalog } = useLive.getState();
  return nodesOf(graphAt(doc, useSweep.getState().path) ?? doc).flatMap((node) => {
    const type = catalog.get(node.type);
    if (type?.isVirtual) return [];
    const linked = new Set(
      node.inputs.flatMap(({ widget, link }) => (link === null ? [] : [widget])),
    );
    return shownPlaced(node, subgraphOf(doc, node.type), catalog)
      .filter(({ widget }) => !linked.has(widget.name))
      .map((placed) => {
        const title = `${node.title || type?.title || node.type} #${node.id}: ${placed.widget.name}`;
        return { ...placed, node: node.id, title };
      });
  });
}

/** Returns the field of an axis, with its typed values. */
export function axisOf(fields: readonly SweptField[], { node, widget, text }: Axis) {
  const field = fields.find((one) => one.node === node && one.widget.name === widget);
  return field === undefined ? null : { field, ...typedValues(field.widget, text) };
}

/** Opens the sweep dialog, with the current field as an axis. */
export function openSweepDialog(): void {
  const [session, meant] = [activeSession(), currentField()];
  if (session === null) return;
  const { id, path } = session;
  const before = useSweep.getState();
  if (before.session !== id || before.path.join() !== path.join())
    useSweep.setState({ session: id, path, axes: [], started: null });
  const { axes } = useSweep.getState();
  const isNew = !axes.some(({ node, widget }) => node === meant?.node && widget === meant.widget);
  if (meant !== null && isNew && axes.length < MAX_AXES) addAxis(meant.node, meant.widget);
  usePage.setState({ dialog: "sweep" });
}

/** Adds a field to the sweep, with its present value. */
export function addAxis(node: string, widget: string): void {
  const session = activeSession();
  if (session === null) return;
  const field = axisOf(fieldsOf(docOf(session)), { node, widget, text: "" })?.field;
  if (field === undefined) return;
  const text = String(field.value).replaceAll(/\s*\n\s*/g, " "); // one value per line
  useSweep.setState(({ axes }) => ({ axes: [...axes, { node, widget, text }] }));
}

/** Queues a run for each combination of values. The document is unchanged. */
export async function startSweep(): Promise<void> {
  const session = activeSession();
  if (session === null) return;
  const doc = docOf(session);
  const { catalog } = useLive.getState();
  const { axes, path } = useSweep.getState();
  const fields = fieldsOf(doc);
  const swept = axes.flatMap((axis) => axisOf(fields, axis) ?? []);
  const lists = swept.map(({ values }) => values);
  const count = countOf(lists);
  if (count === 0 || count > MAX_RUNS) return;
  const runs = combinations(lists).map((values) => ({ values, job: crypto.randomUUID() }));
  useSweep.setState({ started: { names: swept.map(({ field }) => field.title), runs } });
  try {
    for (const { values, job } of runs) {
      const varied = changeAt(doc, path, (graph) =>
        swept.reduce(
          (next, { field }, at) =>
            setWidget(next, catalog, field.node, field, values[at] ?? field.value),
          graph,
        ),
      );
      await send(session, varied, job);
    }
  } catch (error) {
    notify(error);
  }
}

/** Cancels the runs that have not ended. */
export async function cancelSweep(): Promise<void> {
  const { byId } = useLive.getState().jobs;
  for (const { job } of useSweep.getState().started?.runs ?? []) {
    const status = byId[job]?.status;
    if (status === "pending" || status === "running") await cancel(job).catch(notify);
  }
}
