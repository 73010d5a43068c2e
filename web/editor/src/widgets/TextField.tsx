/**
 * Edits text. Typing in one field is one undo step; Ctrl+↑ and Ctrl+↓ change the weight of the
 * selection; model names are completed.
 */
import { type KeyboardEvent, useRef } from "react";
import { write, writtenIn } from "../commands/promptText";
import { weighed } from "../prompts/weights";
import type { Field } from "./field";
import { useCompletion } from "./useCompletion";

export function TextField(field: Field) {
  const { widget, value, label, help, set } = field;
  const gesture = useRef("");
  const shared = {
    "aria-label": label,
    "aria-description": help,
    value: String(value),
    spellCheck: false,
    onFocus: () => {
      gesture.current = crypto.randomUUID();
    },
  };
  const put = (text: string) => set(text, gesture.current);
  return widget.lines ? (
    <Lines {...shared} title={help} placeholder={label} put={put} />
  ) : (
    <input {...shared} onChange={(event) => put(event.target.value)} />
  );
}

/** Edits multi-line text. It has no label, so its help is its tooltip. */
function Lines({
  put,
  onFocus,
  ...shared
}: React.ComponentProps<"textarea"> & {
  readonly onFocus: () => void;
  readonly put: (text: string) => void;
}) {
  const area = useRef<HTMLTextAreaElement>(null);
  const completion = useCompletion(area);
  const weigh = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key] as 1 | -1 | undefined;
    if (way === undefined || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();
    write(event.currentTarget, weighed(writtenIn(event.currentTarget), way));
  };
  return (
    <>
      <textarea
        {...shared}
        {...completion.described}
        ref={area}
        rows={4}
        onChange={(event) => {
          put(event.target.value);
          completion.look();
        }}
        onKeyDown={(event) => completion.onKey(event) || weigh(event)}
        // the wheel scrolls a focused field, else zooms the canvas
        onFocus={(event) => {
          onFocus();
          event.currentTarget.classList.add("nowheel");
        }}
        onBlur={(event) => {
          event.currentTarget.classList.remove("nowheel");
          completion.close();
        }}
      />
      {completion.shown}
    </>
  );
}
