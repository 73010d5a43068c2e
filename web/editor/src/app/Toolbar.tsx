import {
  Download,
  Files,
  FolderOpen,
  Images,
  Keyboard,
  LayoutTemplate,
  List,
  Network,
  Play,
  Redo2,
  Repeat,
  Save,
  Square,
  Undo2,
} from "lucide-react";
import type { ReactNode } from "react";
import { ACTIONS } from "../commands/actions";
import { keyText, useKeys } from "../commands/keys";
import type { Job } from "../jobs/job";
import type { Session } from "../state/documents";
import { useFollowed, useLive } from "../state/live";

export function Toolbar({ session }: { readonly session: Session }) {
  const { active, latest, queued } = useFollowed((own) => own);
  const queue = useLive(({ jobs }) => jobs.queue);
  const { past, future } = session.history;
  return (
    <div className="toolbar" role="toolbar" aria-label="actions">
      <Button id="open" icon={<FolderOpen size={15} />} />
      <Button id="save" icon={<Save size={15} />} />
      <Button id="download" icon={<Download size={15} />} />
      <Button id="files" icon={<Files size={15} />} />
      <Button id="templates" icon={<LayoutTemplate size={15} />} />
      <span className="gap" />
      <Button
        id="undo"
        icon={<Undo2 size={15} />}
        disabled={past.length === 0}
        more={past.length > 0 ? `: ${session.history.present.label}` : ""}
      />
      <Button
        id="redo"
        icon={<Redo2 size={15} />}
        disabled={future.length === 0}
        more={future[0] ? `: ${future[0].label}` : ""}
      />
      <span className="state" role="status">
        {latest !== null && stateOf(latest)}
        {queued > 0 && `, ${queued} more queued`}
      </span>
      <Button id="gallery" icon={<Images size={15} />} />
      <Button id="plan" icon={<Network size={15} />} label="plan" />
      <Button id="keys" icon={<Keyboard size={15} />} />
      <Button
        id="jobs"
        icon={<List size={15} />}
        label={`queue ${queue.running + queue.pending}${queue.paused ? ", paused" : ""}`}
      />
      <Button id="rerun" icon={<Repeat size={14} />} pressed={session.reruns !== null} />
      <Button id="stop" icon={<Square size={13} />} label="Stop" disabled={active === null} />
      <Button id="run" icon={<Play size={13} />} label="Run" prominent />
    </div>
  );
}

function stateOf(job: Job): string {
  if (job.status === "pending") return "waiting";
  if (job.status === "running") {
    const predicted = job.predicted === null ? "" : `, ${job.predicted.toFixed(1)} s predicted`;
    return `running${predicted}`;
  }
  const seconds = job.started !== null && job.ended !== null ? job.ended - job.started : null;
  return seconds === null ? job.status : `${job.status} in ${seconds.toFixed(2)} s`;
}

function Button({
  id,
  icon,
  label = "",
  more = "",
  disabled = false,
  prominent = false,
  pressed,
}: {
  readonly id: string;
  readonly icon: ReactNode;
  readonly label?: string;
  readonly more?: string;
  readonly disabled?: boolean;
  readonly prominent?: boolean;
  /** Only for toggle buttons. */
  readonly pressed?: boolean;
}) {
  const keysOf = useKeys();
  const action = ACTIONS.find((one) => one.id === id);
  if (action === undefined) return null;
  const keys = keysOf(action).map(keyText).join(", ");
  return (
    <button
      type="button"
      className={prominent ? "prominent" : "plain"}
      disabled={disabled}
      aria-pressed={pressed}
      aria-label={label === "" ? action.title : undefined}
      title={`${action.title}${more}${keys === "" ? "" : ` (${keys})`}`}
      onClick={action.act}
    >
      {icon}
      {label}
    </button>
  );
}
