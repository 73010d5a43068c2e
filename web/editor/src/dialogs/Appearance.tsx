/** Changes the page's appearance: theme, text size in nodes, and custom colours. */
import { useState } from "react";
import {
  parsed,
  printed,
  type Scheme,
  SCHEMES,
  TEXT,
  unreadable,
  DEFAULT_LOOK,
  type Variable,
  VARIABLES,
} from "../state/look";
import { THEMES, useSettings } from "../state/settings";
import { pickedOf } from "../ui/colours";
import { Modal } from "../ui/Modal";

export function Appearance({ onClose }: { readonly onClose: () => void }) {
  const { theme, look, setTheme, setLook } = useSettings();
  const [text, setText] = useState(() => printed(look.colours));
  const [wrong, setWrong] = useState<readonly string[]>([]);
  const paint = (colours: typeof look.colours) => {
    setLook({ ...look, colours });
    setText(printed(colours));
    setWrong([]);
  };
  return (
    <Modal label="Appearance" onClose={onClose}>
      <div className="appearance">
        <p>
          <label>
            Theme{" "}
            <select
              value={theme}
              onChange={(event) =>
                setTheme(THEMES.find((one) => one === event.target.value) ?? "system")
              }
            >
              {THEMES.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
          <label>
            Text size in nodes{" "}
            <input
              type="range"
              min={TEXT.least}
              max={TEXT.most}
              value={look.text}
              onChange={(event) => setLook({ ...look, text: Number(event.target.value) })}
            />{" "}
            {look.text} px
          </label>
          <button type="button" onClick={() => (setLook(DEFAULT_LOOK), setText(""), setWrong([]))}>
            Reset all
          </button>
        </p>
        <table>
          <thead>
            <tr>
              <th scope="col">Colour of</th>
              {SCHEMES.map((scheme) => (
                <th key={scheme} scope="col">
                  {scheme}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {(Object.keys(VARIABLES) as Variable[]).map((name) => (
              <tr key={name}>
                <th scope="row">{VARIABLES[name]}</th>
                {SCHEMES.map((scheme) => (
                  <td key={scheme}>
                    <input
                      type="color"
                      aria-label={`${VARIABLES[name]}, ${scheme}`}
                      value={holds(scheme, name)}
                      onChange={(event) =>
                        paint({ ...look.colours, [`${scheme}-${name}`]: event.target.value })
                      }
                    />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
        <div>
          <label>
            Export or import as text
            <textarea
              rows={8}
              spellCheck={false}
              placeholder="--dark-accent: #ff8800;"
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
          </label>
          <button
            type="button"
            onClick={() => {
              const { colours, wrong: lines } = parsed(text);
              setLook({ ...look, colours });
              setWrong(lines);
            }}
          >
            Apply
          </button>
          <ul role="status" className="missing">
            {[...wrong.map((line) => `not valid: ${line}`), ...unreadable(holds)].map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        </div>
      </div>
    </Modal>
  );
}

/** Returns the current colour of a variable. */
function holds(scheme: Scheme, name: Variable): string {
  const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  const [light = "", dark = ""] = value.match(/#[0-9a-f]+/gi) ?? [];
  return pickedOf(scheme === "light" ? light : dark) ?? "#000000";
}
