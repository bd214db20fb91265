package engine

import (
	"fmt"
	"os"
	"time"
)

// The pages that routers ask of an engine beside prompts: Plait's status, and what sglang-router asks before
// it takes a worker in.

func (e *Engine) statusPage() string {
	now := float64(time.Now().UnixMilli()) / 1000
	return fmt.Sprintf(`{"version":1,"role":%q,"layout":"shared","split":"interleave","cp":1,"model":"mock",`+
		`"wire_hash":"6d6f636b6d6f636b6d6f636b6d6f636b","group_hash":"67726f757067726f757067726f757067",`+
		`"started_at":%.3f,"capacity":{"tokens":1000000,"tokens_replicated":1000000,"scratch_tokens":0,`+
		`"page_size":64},"ranks":[{"rank":0,"pid":%d,"updated_at":%.3f,"age_s":0.05,"running":0,`+
		`"queued":0}],"hooks":[]}`,
		e.side.String(), float64(e.server.started.UnixMilli())/1000, os.Getpid(), now)
}

func (e *Engine) page(path string) (string, bool) {
	switch path {
	case "/plait/status":
		return e.statusPage(), true
	case "/health", "/health_generate", "/flush_cache":
		return `{"status":"ok"}`, true
	case "/v1/models":
		return `{"object":"list","data":[{"id":"mock","object":"model","created":1790000000,` +
			`"owned_by":"sglang","root":"mock","parent":null,"max_model_len":1048576}]}`, true
	case "/get_model_info", "/model_info":
		return `{"model_path":"/models/mock","tokenizer_path":"/models/mock","is_generation":true,"preferred_sampling_params":` +
			`null,"weight_version":"default","has_image_understanding":false,` +
			`"has_audio_understanding":false,"model_type":"mock","architectures":["MockForCausalLM"]}`, true
	case "/get_server_info", "/server_info":
		return fmt.Sprintf(`{"model_path":"/models/mock","served_model_name":"mock","tokenizer_path":"/models/mock",`+
			`"tp_size":1,"dp_size":1,"version":"0.5.17","disaggregation_mode":%q,"max_total_num_tokens":`+
			`1000000,"max_req_input_len":1000000,"internal_states":[{"load":0}]}`, e.side.String()), true
	case "/get_load", "/v1/loads":
		return `[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]`, true
	}
	return "", false
}
