// Package api is what control speaks: the JSON bodies of the control API and its
// one error, shared by the server and the client. control/openapi.yaml describes
// the same bodies, and a test holds the two together.
//
//	req := api.SwapRequest{Policy: &doc, For: api.Duration(10 * time.Minute)}
//	result, err := client.Swap(ctx, req)
//	var refused *api.Error
//	if errors.As(err, &refused) && refused.Code == api.CodeStaleGeneration {
//		// somebody else swapped first: refused.CurrentGeneration
//	}
package api
