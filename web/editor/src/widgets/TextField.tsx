/** Edits a text. Typing in one field is one step of undo; Ctrl+↑ and Ctrl+↓ weigh the selection. */
import { type KeyboardEvent, useLayoutEffect, useRef } from "react";
import { type Selected, weighed } from "../catalog/weights";
import type { Field } from "./field";

export function TextField({ widget, value, label, help, set }: Field) {
  const gesture = useRef("");
  const area = useRef<HTMLTextAreaElement>(null);
  const selection = useRef<Selected | null>(null);
  useLayoutEffect(() => {
    const kept = selection.current;
    selection.current = null;
    if (kept !== null && kept.text === value) area.current?.setSelectionRange(kept.start, kept.end);
  }, [value]);
  const shared = {
    "aria-label": label,
    "aria-description": help,
    ...(widget.lines ? { title: help } : {}), // it has no name beside it that could say so
    value: String(value),
    spellCheck: false,
    onFocus: () => {
      gesture.current = crypto.randomUUID();
    },
  };
  if (!widget.lines)
    return <input {...shared} onChange={(event) => set(event.target.value, gesture.current)} />;
  const weigh = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key] as 1 | -1 | undefined;
    if (way === undefined || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();
    const { value: text, selectionStart: start, selectionEnd: end } = event.currentTarget;
    selection.current = weighed({ text, start, end }, way);
    set(selection.current.text, gesture.current);
  };
  return (
    <textarea
      {...shared}
      ref={area}
      rows={4}
      placeholder={label}
      onChange={(event) => set(event.target.value, gesture.current)}
      onKeyDown={weigh}
      // the wheel is the field's while somebody writes in it, else the canvas's
      onFocus={(event) => {
        shared.onFocus();
        event.currentTarget.classList.add("nowheel");
      }}
      onBlur={(event) => event.currentTarget.classList.remove("nowheel")}
    />
  );
}
