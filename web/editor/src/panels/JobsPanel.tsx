/** Lists this client's running, waiting and ended jobs. */
import { run } from "../commands/run";
import { copyJobLink, openAsItRan } from "../commands/sharedLinks";
import type { Job } from "../jobs/job";
import { addressOf, cancel, picturesOf, steer } from "../server/client";
import { forget, moveToFront } from "../server/jobs";
import { useDocuments } from "../state/documents";
import { forgetJob, notify, useLive } from "../state/live";
import { usePage } from "../state/page";

export function JobsPanel() {
  const jobs = useLive((live) => live.jobs);
  const sessions = useDocuments((documents) => documents.sessions);
  const all = Object.values(jobs.byId).sort((one, other) => other.created - one.created);
  return (
    <aside className="side jobs" aria-label="queue and history">
      <h2>
        {jobs.queue.running} running, {jobs.queue.pending} waiting
      </h2>
      <div className="steering">
        <button
          type="button"
          onClick={() => void steer(jobs.queue.paused ? "resume" : "pause").catch(notify)}
        >
          {jobs.queue.paused ? "Resume" : "Pause"}
        </button>
        <button
          type="button"
          disabled={jobs.queue.running + jobs.queue.pending === 0}
          onClick={() => void steer("clear").catch(notify)}
        >
          Cancel all
        </button>
        {jobs.queue.paused && <span>paused: waiting jobs stay in the queue</span>}
      </div>
      {all.length === 0 && <p className="empty">no runs yet</p>}
      <ol>
        {all.map((job) => (
          <Row
            key={job.id}
            job={job}
            place={jobs.queue.places[job.id]}
            name={sessions.find(({ runs }) => runs.includes(job.id))?.name ?? ""}
          />
        ))}
      </ol>
    </aside>
  );
}

function Row({
  job,
  place,
  name,
}: {
  readonly job: Job;
  readonly place: number | undefined;
  readonly name: string;
}) {
  const pictures = Object.values(job.outputs).flatMap(picturesOf);
  const addresses = pictures.map((picture) => addressOf(picture));
  const busy = job.status === "running" || job.status === "pending";
  const began = new Date(1000 * job.created).toLocaleTimeString();
  return (
    <li>
      <div>
        <i className={`dot ${job.status}`} /> {job.status}
        {place !== undefined && place > 0 ? `, ${place} ahead of it` : ""}
        <small>
          {name} {began}
        </small>
      </div>
      <div className="steering">
        {place !== undefined && place > 0 && (
          <button type="button" onClick={() => void moveToFront(job.id).catch(notify)}>
            Run next
          </button>
        )}
        {busy ? (
          <button type="button" onClick={() => void cancel(job.id).catch(notify)}>
            Cancel
          </button>
        ) : (
          <>
            <button type="button" onClick={() => void openAsItRan(job.id, name).catch(notify)}>
              Open as it ran
            </button>
            <button
              type="button"
              onClick={() => void openAsItRan(job.id, name).then(() => run(), notify)}
            >
              Run again
            </button>
            <button
              type="button"
              onClick={() => void forget(job.id).then(() => forgetJob(job.id), notify)}
            >
              Forget
            </button>
          </>
        )}
        <button type="button" onClick={() => void copyJobLink(job.id)}>
          Copy link
        </button>
      </div>
      {job.error && <p className="missing">{job.error.message}</p>}
      <div className="pictures">
        {pictures.map((picture, at) => (
          <button
            type="button"
            key={picture.filename}
            onClick={() => usePage.setState({ pictures: { addresses, at } })}
          >
            <img src={addressOf(picture, 128)} alt={picture.filename} loading="lazy" />
          </button>
        ))}
      </div>
    </li>
  );
}
