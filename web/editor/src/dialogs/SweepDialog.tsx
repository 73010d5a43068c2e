/** Asks for the values of fields, and shows the results of all combinations in a grid. */
import { addAxis, axisOf, cancelSweep, fieldsOf, startSweep } from "../commands/sweep";
import type { Json } from "../json";
import { addressOf, picturesOf } from "../server/client";
import { docOf, useActive } from "../state/documents";
import { useJob, useLive } from "../state/live";
import { usePage } from "../state/page";
import { changeAxis, removeAxis, useSweep } from "../state/sweep";
import { countOf, MAX_AXES, MAX_RUNS, rowsOf } from "../sweep/sweep";
import { Modal } from "../ui/Modal";
import "./sweep.css";

export function SweepDialog({ onClose }: { readonly onClose: () => void }) {
  const session = useActive();
  const axes = useSweep((sweep) => sweep.axes);
  useLive(({ catalog }) => catalog);
  if (session === null) return null;
  const fields = fieldsOf(docOf(session));
  const typed = axes.flatMap((axis, at) => {
    const found = axisOf(fields, axis);
    return found === null ? [] : [{ ...found, text: axis.text, at }];
  });
  const count = countOf(typed.map(({ values }) => values));
  const isFit = count > 0 && count <= MAX_RUNS;
  return (
    <Modal label="Sweep" onClose={onClose}>
      <div className="sweep-axes">
        {typed.map(({ field, wrong, text, at }) => (
          <label key={`${field.node} ${field.widget.name}`}>
            {field.title}
            <textarea
              value={text}
              rows={4}
              aria-invalid={wrong.length > 0}
              placeholder="one value per line"
              onChange={(event) => changeAxis(at, { text: event.target.value })}
            />
            {wrong.length > 0 && <small className="missing">not a value: {wrong.join(", ")}</small>}
            <button type="button" onClick={() => removeAxis(at)}>
              Remove
            </button>
          </label>
        ))}
        {typed.length < MAX_AXES && (
          <select
            aria-label="Another field"
            value=""
            onChange={(event) => {
              const field = fields[Number(event.target.value)];
              if (field !== undefined) addAxis(field.node, field.widget.name);
            }}
          >
            <option value="">another field …</option>
            {fields.map(({ title }, at) => (
              <option key={title} value={at}>
                {title}
              </option>
            ))}
          </select>
        )}
      </div>
      <p className="steering">
        <button
          type="button"
          className="prominent"
          disabled={!isFit}
          onClick={() => void startSweep()}
        >
          Run {count}
        </button>
        <button type="button" onClick={() => void cancelSweep()}>
          Cancel unfinished runs
        </button>
        <span role="status">
          {count} {count === 1 ? "run" : "runs"} of at most {MAX_RUNS}; one value per line
        </span>
      </p>
      <Grid />
    </Modal>
  );
}

function Grid() {
  const started = useSweep((sweep) => sweep.started);
  if (started === null) return null;
  const rows = rowsOf(started.runs);
  const columns = rows[0]?.runs.map(({ values }) => values.at(-1) ?? null) ?? [];
  const [last, others] = [started.names.at(-1), started.names.slice(0, -1)];
  return (
    <div className="sweep-grid" tabIndex={0} role="group" aria-label="results">
      <table>
        <caption>
          {others.length === 0 ? last : `${others.join(", ")} downwards; ${last} to the right`}
        </caption>
        <thead>
          <tr>
            <td />
            {columns.map((value) => (
              <th scope="col" key={String(value)}>
                {String(value)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ heading, runs }) => (
            <tr key={heading.map(String).join()}>
              <th scope="row">{heading.map(String).join(", ")}</th>
              {runs.map(({ job, values }) => (
                <Cell key={job} job={job} values={values} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Cell({ job: id, values }: { readonly job: string; readonly values: readonly Json[] }) {
  const job = useJob(id);
  const outputs = Object.values(job?.outputs ?? {});
  const pictures = outputs.flatMap(picturesOf);
  const addresses = pictures.map((picture) => addressOf(picture));
  const texts = outputs.flatMap(({ text }) => (text ?? []).map(String));
  return (
    <td>
      {pictures.map((picture, at) => (
        <button
          type="button"
          key={picture.filename}
          onClick={() => usePage.setState({ pictures: { addresses, at } })}
        >
          <img
            src={addressOf(picture, 256)}
            alt={`${values.map(String).join(", ")}: ${picture.filename}`}
            loading="lazy"
          />
        </button>
      ))}
      {texts.map((text) => (
        <p key={text}>{text}</p>
      ))}
      {pictures.length + texts.length === 0 && <small>{job?.status ?? "…"}</small>}
      {job?.error && <small className="missing">{job.error.message}</small>}
    </td>
  );
}
