/** Edits a colour, picked or typed as `#rrggbb`. Picking it is one undo step. */
import { useEffect, useRef, useState } from "react";
import { parsedColour, pickedOf, valueOf } from "../ui/colours";
import type { Field } from "./field";

export function ColourField(field: Field) {
  const { value, label, help, set } = field;
  const [text, setText] = useState(String(value));
  useEffect(() => setText(String(value)), [value]);
  const confirm = () => {
    const next = parsedColour(text);
    if (next === null) setText(String(value));
    else if (next !== value) set(next);
  };
  return (
    <>
      <Swatch {...field} />
      <input
        aria-label={label}
        aria-description={help}
        spellCheck={false}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onBlur={confirm}
        onKeyDown={(event) => {
          if (event.key === "Enter") confirm();
          if (event.key === "Escape") setText(String(value));
        }}
      />
    </>
  );
}

/** Shows the colour, and opens the browser's colour picker. */
export function Swatch({ value, label, set }: Field) {
  const gesture = useRef("");
  return (
    <input
      type="color"
      aria-label={`${label}, picker`}
      value={pickedOf(value) ?? "#000000"}
      onClick={() => {
        gesture.current = crypto.randomUUID();
      }}
      onChange={(event) => set(valueOf(event.target.value, value), gesture.current)}
    />
  );
}
