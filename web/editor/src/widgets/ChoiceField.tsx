/** Edits a choice in a list or, for many choices, a search. A missing value is never replaced. */
import { useState } from "react";
import { nearestName } from "../catalog/nearestName";
import { Picker } from "../ui/Picker";
import type { Field } from "./field";

const MAX_MENU_CHOICES = 24;
const MAX_SHOWN = 200;

export function ChoiceField(field: Field) {
  const { widget, value, set } = field;
  const names = widget.choices.map(String);
  const near = names.includes(String(value)) ? null : nearestName(String(value), names);
  return (
    <>
      <Choice {...field} />
      {near !== null && (
        <button type="button" className="near" onClick={() => set(near)}>
          use {near}?
        </button>
      )}
    </>
  );
}

function Choice({ widget, value, label, help, set }: Field) {
  const [searching, setSearching] = useState(false);
  const present = String(value);
  const choose = (text: string) => {
    setSearching(false);
    set(widget.choices.find((choice) => String(choice) === text) ?? text);
  };
  const there = widget.choices.some((choice) => String(choice) === present);
  const shared = {
    "aria-label": label,
    "aria-description": help,
    className: there ? "" : "missing",
    title: there ? present : `${present} not found`,
  };
  if (widget.choices.length > MAX_MENU_CHOICES)
    return (
      <>
        <button
          type="button"
          {...shared}
          className={`choice ${shared.className}`}
          aria-label={`${label}: ${present}`}
          aria-haspopup="listbox"
          onClick={() => setSearching(true)}
        >
          {present}
          {there ? "" : " (missing)"}
        </button>
        {searching && (
          <Search
            label={label}
            choices={widget.choices.map(String)}
            onPick={choose}
            onClose={() => setSearching(false)}
          />
        )}
      </>
    );
  return (
    <select {...shared} value={present} onChange={(event) => choose(event.target.value)}>
      {!there && <option value={present}>{present} (missing)</option>}
      {widget.choices.map((choice) => (
        <option key={String(choice)}>{String(choice)}</option>
      ))}
    </select>
  );
}

function Search({
  label,
  choices,
  onPick,
  onClose,
}: {
  readonly label: string;
  readonly choices: readonly string[];
  readonly onPick: (choice: string) => void;
  readonly onClose: () => void;
}) {
  const [query, setQuery] = useState("");
  const words = query.toLowerCase().split(/\s+/);
  const found = choices.filter((choice) => {
    const text = choice.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return (
    <Picker
      label={label}
      query={query}
      onQuery={setQuery}
      entries={found.slice(0, MAX_SHOWN).map((choice) => {
        const cut = choice.lastIndexOf("/") + 1;
        return { id: choice, title: choice.slice(cut), detail: choice.slice(0, cut) };
      })}
      onPick={onPick}
      onClose={onClose}
    />
  );
}
