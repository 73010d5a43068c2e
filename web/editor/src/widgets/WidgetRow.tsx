/** Edits one value of a node. Typing in one field is one step of undo. */
import { type ReactNode, useEffect, useRef, useState } from "react";
import type { Placed, Widget } from "../catalog/catalog";
import { NEXT, NEXT_WORDS } from "../catalog/seeds";
import { setValue } from "../document/commands";
import type { Json } from "../json";
import { addressOf, upload } from "../server/client";
import { activeSession, useDocuments } from "../shell/documents";
import { tell } from "../shell/live";
import { parsedNumber } from "./numbers";

interface Field {
  readonly widget: Widget;
  readonly value: Json;
  readonly label: string;
  readonly set: (value: Json, gesture?: string) => void;
}

export function WidgetRow({
  node,
  placed: { widget, key, value },
  handle,
  linked,
  after,
}: {
  readonly node: string;
  readonly placed: Placed;
  /** What a link to the widget is drawn to; none for a text that never runs. */
  readonly handle: ReactNode;
  readonly linked: boolean;
  /** The hidden value behind this one. */
  readonly after: Json | undefined;
}) {
  const put = (place: number | string, next: Json, gesture = "") => {
    const session = activeSession();
    if (session === null) return;
    useDocuments
      .getState()
      .change(
        session.id,
        `set ${widget.name}`,
        (graph) => setValue(graph, node, place, next, place === key ? widget.name : ""),
        gesture,
      );
  };
  const field: Field = {
    widget,
    value,
    label: widget.name,
    set: (next, gesture) => put(key, next, gesture),
  };
  return (
    <div className={`widget nodrag ${widget.lines ? "lines" : ""} ${linked ? "linked" : ""}`}>
      {handle}
      {(!widget.lines || linked) && (
        <span className="label">{widget.name.replaceAll("_", " ")}</span>
      )}
      {linked ? <span className="value">linked</span> : <Value {...field} />}
      {!linked && widget.helper === "seed" && typeof key === "number" && (
        <select
          aria-label={`${widget.name}, next run`}
          title="next run"
          value={String(after)}
          onChange={(event) => put(key + 1, event.target.value)}
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
}

function Value(field: Field) {
  switch (field.widget.kind) {
    case "text":
      return <TextField {...field} />;
    case "number":
      return <NumberField {...field} />;
    case "choice":
      return <ChoiceField {...field} />;
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

function TextField({ widget, value, label, set }: Field) {
  const gesture = useRef("");
  const shared = {
    "aria-label": label,
    value: String(value),
    spellCheck: false,
    onFocus: () => {
      gesture.current = crypto.randomUUID();
    },
  };
  return widget.lines ? (
    <textarea
      {...shared}
      rows={4}
      placeholder={label}
      onChange={(event) => set(event.target.value, gesture.current)}
    />
  ) : (
    <input {...shared} onChange={(event) => set(event.target.value, gesture.current)} />
  );
}

function NumberField({ widget, value, label, set }: Field) {
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
      value={text}
      onChange={(event) => setText(event.target.value)}
      onBlur={confirm}
      onKeyDown={(event) => {
        if (event.key === "Enter") confirm();
        if (event.key === "Escape") setText(String(value));
        const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
        const present = parsedNumber(text, widget);
        if (step === undefined || present === null) return;
        event.preventDefault();
        const size = Number(widget.options.step ?? (widget.whole ? 1 : 0.1)) || 1;
        const next = widget.whole
          ? String(BigInt(present) + BigInt(step * Math.max(1, Math.round(size))))
          : String(Number((Number(present) + step * size).toFixed(6)));
        const kept = parsedNumber(next, widget);
        if (kept !== null) set(kept);
      }}
    />
  );
}

function ChoiceField({ widget, value, label, set }: Field) {
  const choices = widget.choices.map(String);
  const present = String(value);
  const there = choices.includes(present);
  return (
    <>
      <select
        aria-label={label}
        className={there ? "" : "missing"}
        title={there ? present : `${present} is not there`}
        value={present}
        onChange={(event) => {
          set(widget.choices[choices.indexOf(event.target.value)] ?? event.target.value);
        }}
      >
        {!there && <option value={present}>{present} (missing)</option>}
        {choices.map((choice) => (
          <option key={choice}>{choice}</option>
        ))}
      </select>
      {widget.helper === "upload" && (
        <>
          <label className="upload" title="use a picture of yours">
            upload
            <input
              type="file"
              accept="image/*"
              onChange={(event) => {
                const file = event.target.files?.[0];
                if (file) upload(file).then(set, tell);
              }}
            />
          </label>
          <img
            className="thumbnail"
            alt={present}
            src={addressOf({ filename: present, subfolder: "", type: "input" }, 256)}
          />
        </>
      )}
    </>
  );
}
