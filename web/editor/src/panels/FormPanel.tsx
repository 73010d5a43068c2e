/** Shows a graph as a form: the chosen fields and the results of output nodes. */
import { ArrowUp, X } from "lucide-react";
import { Results } from "../canvas/nodes/Results";
import { shownPlaced } from "../catalog/promoted";
import { ACTIONS } from "../commands/actions";
import { raiseField, toggleField } from "../commands/edits/form";
import { keyText, useKeys } from "../commands/keys";
import { formOf } from "../document/form";
import { type DocNode, nodesOf } from "../document/model";
import { subgraphOf } from "../document/scope";
import { type Json, listOf } from "../json";
import { docOf, graphOf, type Session } from "../state/documents";
import { useLive } from "../state/live";
import { WidgetRow } from "../widgets/WidgetRow";

export function FormPanel({ session }: { readonly session: Session }) {
  const catalog = useLive((live) => live.catalog);
  const keysOf = useKeys();
  const [key = "…"] = ACTIONS.filter(({ id }) => id === "form-field")
    .flatMap(keysOf)
    .map(keyText);
  const graph = graphOf(session);
  const nodes = new Map(nodesOf(graph).map((node) => [node.id, node]));
  const placedOf = (node: DocNode) =>
    shownPlaced(node, subgraphOf(docOf(session), node.type), catalog);
  const fields = formOf(graph).flatMap((field) => {
    const node = nodes.get(field.node);
    const placed = node && placedOf(node).find(({ widget }) => widget.name === field.widget);
    return node === undefined || placed === undefined ? [] : [{ field, node, placed }];
  });
  const outputs = [...nodes.values()].filter(({ type }) => catalog.get(type)?.isOutput);
  return (
    <aside className="side form" aria-label="form">
      <h2>Form</h2>
      {fields.length === 0 && (
        <p className="empty">
          No field was chosen yet: point at one in its node and press {key}, as often as you like.
        </p>
      )}
      <ol>
        {fields.map(({ field, node, placed }, at) => (
          <li key={`${field.node} ${field.widget}`}>
            <p>
              <small>
                {node.title || catalog.get(node.type)?.title || node.type}
                {placed.widget.lines && `, ${placed.widget.name}`}
              </small>
              <button
                type="button"
                className="plain"
                aria-label={`move ${field.widget} up`}
                disabled={at === 0}
                onClick={() => raiseField(field)}
              >
                <ArrowUp size={12} />
              </button>
              <button
                type="button"
                className="plain"
                aria-label={`remove ${field.widget} from the form`}
                onClick={() => toggleField(field)}
              >
                <X size={12} />
              </button>
            </p>
            <WidgetRow
              node={node.id}
              placed={placed}
              handle={null}
              handleKey=""
              linked={node.inputs.some(
                (input) => input.widget === placed.widget.name && input.link !== null,
              )}
              after={
                typeof placed.key === "number"
                  ? listOf(node.values as Json)[placed.key + 1]
                  : undefined
              }
            />
          </li>
        ))}
      </ol>
      {outputs.map(({ id }) => (
        <Results key={id} node={[...session.path, id].join(":")} />
      ))}
    </aside>
  );
}
