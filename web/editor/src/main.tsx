import "@xyflow/react/dist/style.css";
import { createRoot } from "react-dom/client";
import { App } from "./app/App";
import { addressParameter } from "./server/jobLinks";
import { lazyPart } from "./ui/lazyPart";
import "./style.css";

const root = document.getElementById("root");
const JobPage = lazyPart(() => import("./jobPage/JobPage").then((part) => part.JobPage));
const job = addressParameter("job");
if (root !== null) createRoot(root).render(job === null ? <App /> : <JobPage id={job} />);
