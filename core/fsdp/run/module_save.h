#pragma once

namespace shardlens::fsdp {

// torch::nn::Module::save() of a module with sharded parameters is an error, also of a module that
// is no unit itself (a torch::nn::Linear inside one): the file would contain only this rank's
// slices. Modules of LibTorch have no hook for this, so the program's definition of Module::save()
// takes precedence over LibTorch's; it checks the module's parameters and calls that one. It does
// not reach modules whose class overrides save(), or an engine in a library that is opened with
// dlopen().
//
// use_checked_save() makes the linker take this definition. Called when parameters are sharded.
//
// Threads     any.
// Errors      of Module::save(): UsageError naming the parameter.
void use_checked_save();

}  // namespace shardlens::fsdp
