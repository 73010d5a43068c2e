/** Edits a number: typed, computed (`512*1.5`), stepped by arrow keys, or dragged by its label. */
import { useEffect, useRef, useState } from "react";
import type { Widget } from "../catalog/catalog";
import { parsedNumber } from "../catalog/numbers";
import type { Field } from "./field";

/** Pixels of the pointer per step. */
const PIXELS = 6;
/** A part of the tooltip of every label. */
export const TRANSFER_HELP = "Alt and drag: set another field to this value";

export function NumberField({ widget, value, label, help, set }: Field) {
  const [text, setText] = useState(String(value));
  useEffect(() => setText(String(value)), [value]);
  const confirm = () => {
    const next = parsedNumber(text, widget);
    if (next === null) setText(String(value));
    else if (next !== value) set(next);
  };
  return (
    <input
      inputMode="decimal"
      aria-label={label}
      aria-description={help}
      value={text}
      onChange={(event) => setText(event.target.value)}
      onBlur={confirm}
      onKeyDown={(event) => {
        if (event.key === "Enter") confirm();
        if (event.key === "Escape") setText(String(value));
        const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
        const next = step === undefined ? null : stepped(text, widget, step);
        if (next === null) return;
        event.preventDefault();
        set(next);
      }}
    />
  );
}

/** The label of a number. Dragging it changes the value; Shift drags finely, Ctrl coarsely. */
export function DragLabel({ widget, value, label, help, set }: Field) {
  const from = useRef<{ x: number; value: string; gesture: string } | null>(null);
  return (
    <span
      className="label drag"
      title={`${label}: ${help}\n(drag to change, Shift finely, Ctrl coarsely; double-click for the default)\n(${TRANSFER_HELP})`}
      onPointerDown={(event) => {
        if (event.button !== 0) return;
        event.currentTarget.setPointerCapture(event.pointerId);
        const gesture = crypto.randomUUID();
        from.current = { x: event.clientX, value: String(value), gesture };
      }}
      onPointerMove={(event) => {
        if (from.current === null) return;
        const pace = event.shiftKey ? 0.1 : event.ctrlKey || event.metaKey ? 10 : 1;
        const steps = ((event.clientX - from.current.x) / PIXELS) * pace;
        const next = stepped(from.current.value, widget, steps);
        if (next !== null && next !== value) set(next, from.current.gesture);
      }}
      onPointerUp={() => {
        from.current = null;
      }}
      onDoubleClick={() => widget.options.default !== undefined && set(widget.options.default)}
    >
      {label.replaceAll("_", " ")}
    </span>
  );
}

function stepped(text: string, widget: Widget, steps: number): number | bigint | null {
  const present = parsedNumber(text, widget);
  if (present === null) return null;
  const size = Number(widget.options.step ?? (widget.whole ? 1 : 0.1)) || 1;
  const next = widget.whole
    ? String(BigInt(present) + BigInt(Math.round(steps)) * BigInt(Math.max(1, Math.round(size))))
    : String(Number((Number(present) + steps * size).toFixed(6)));
  return parsedNumber(next, widget);
}
