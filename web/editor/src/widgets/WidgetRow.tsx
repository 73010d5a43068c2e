/** A row of a node: the widget's label, its field, and the socket for links. */
import { memo, type ReactNode } from "react";
import { widgetHelp } from "../catalog/help";
import type { Placed } from "../catalog/placed";
import { NEXT, NEXT_WORDS } from "../catalog/seeds";
import { setPlaced } from "../commands/fields";
import type { Json } from "../json";
import { noteRender } from "../renders";
import { activeSession } from "../state/documents";
import { usePage } from "../state/page";
import { ChoiceField } from "./ChoiceField";
import { ColourField, Swatch } from "./ColourField";
import type { Field } from "./field";
import { TRANSFER_HELP, DragLabel, NumberField } from "./NumberField";
import { PictureField } from "./PictureField";
import { TextField } from "./TextField";
import { TokenCount } from "./TokenCount";
import { useValueDrag } from "./useValueDrag";

interface Row {
  readonly node: string;
  readonly placed: Placed;
  /** The socket for links; null for a widget that cannot be linked. */
  readonly handle: ReactNode;
  /** Identifies the handle for comparisons. */
  readonly handleKey: string;
  readonly linked: boolean;
  /** The hidden value after this one. */
  readonly after: Json | undefined;
}

/** Renders only if the row's own value changes, not for other rows. */
export const WidgetRow = memo(function WidgetRow(row: Row) {
  const { node, handle, linked, after } = row;
  const { widget, key, value } = row.placed;
  noteRender(`widget ${node}.${widget.name}`);
  const carrying = useValueDrag({ node, widget: widget.name });
  const field: Field = {
    widget,
    value,
    label: widget.name.slice(widget.name.lastIndexOf(".") + 1), // without the name of its choice
    help: widgetHelp(widget),
    set: (next, gesture = "") => setPlaced(node, row.placed, next, { gesture }),
  };
  const mask = () => {
    const session = activeSession()?.id;
    if (session !== undefined)
      usePage.setState({
        masking: { session, node, widget: widget.name, key, value: String(value) },
      });
  };
  return (
    <div
      className={`widget nodrag ${widget.lines ? "lines" : ""} ${linked ? "linked" : ""}`}
      data-widget={widget.name}
      {...carrying}
    >
      {handle}
      {(!widget.lines || linked) && <Label {...field} />}
      {linked ? <span className="value">linked</span> : <Value {...field} onMask={mask} />}
      {!linked && widget.lines && <TokenCount node={node} widget={widget.name} />}
      {!linked && widget.helper === "seed" && typeof key === "number" && (
        <select
          aria-label={`${widget.name}, next run`}
          title="next run"
          value={String(after)}
          onChange={(event) => setPlaced(node, row.placed, event.target.value, { place: key + 1 })}
        >
          {NEXT.map((next) => (
            <option key={next} value={next}>
              {NEXT_WORDS[next]}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}, sameRow);

function sameRow(one: Row, other: Row): boolean {
  return (
    one.node === other.node &&
    one.placed.widget === other.placed.widget &&
    one.placed.key === other.placed.key &&
    one.placed.value === other.placed.value &&
    one.handleKey === other.handleKey &&
    one.linked === other.linked &&
    one.after === other.after
  );
}

/** Shows a label. Dragging it changes a number; a double-click restores any default. */
function Label(field: Field) {
  const { widget, label, help, set } = field;
  if (widget.kind === "number") return <DragLabel {...field} />;
  const { default: start } = widget.options;
  return (
    <span
      className="label"
      title={`${label}: ${help}${start === undefined ? "" : "\n(double-click for the default)"}\n(${TRANSFER_HELP})`}
      onDoubleClick={() => start !== undefined && set(start)}
    >
      {label.replaceAll("_", " ")}
    </span>
  );
}

function Value({ onMask, ...field }: Field & { readonly onMask: () => void }) {
  switch (field.widget.kind) {
    case "text":
      return <TextField {...field} />;
    case "number":
      return (
        <>
          {field.widget.options.display === "color" && <Swatch {...field} />}
          <NumberField {...field} />
        </>
      );
    case "colour":
      return <ColourField {...field} />;
    case "choice":
      return field.widget.helper === "upload" ? (
        <PictureField {...field} onMask={onMask} />
      ) : (
        <ChoiceField {...field} />
      );
    case "switch":
      return (
        <input
          type="checkbox"
          aria-label={field.label}
          checked={field.value === true}
          onChange={(event) => field.set(event.target.checked)}
        />
      );
  }
}
